"""When an image counts as changed, and that its Dockerfile copies exactly what is watched."""

import re
from pathlib import Path

import pytest

from e2e.cluster.paths import REPOSITORY
from e2e.images.recipes import RECIPES, Recipe, digest_inputs

RECIPE = Recipe("demo", "Dockerfile", ("code", "lock"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a = 1\n")
    (tmp_path / "lock").write_text("x==1\n")
    return tmp_path


@pytest.mark.parametrize("changed", ["Dockerfile", "code/a.py", "code/new.py", "lock"])
def test_any_input_counts(tree: Path, changed: str) -> None:
    before = digest_inputs(tree, RECIPE, [])
    (tree / changed).write_text("changed\n")
    assert digest_inputs(tree, RECIPE, []) != before


def test_a_renamed_file_and_the_outside_count(tree: Path) -> None:
    before = digest_inputs(tree, RECIPE, [])
    assert digest_inputs(tree, RECIPE, ["base"]) != before
    (tree / "code" / "a.py").rename(tree / "code" / "b.py")
    assert digest_inputs(tree, RECIPE, []) != before


def test_neighbours_and_bytecode_do_not_count(tree: Path) -> None:
    before = digest_inputs(tree, RECIPE, [])
    (tree / "other").write_text("x")
    (tree / "code" / "__pycache__").mkdir()
    (tree / "code" / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert digest_inputs(tree, RECIPE, []) == before


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_watches_what_its_dockerfile_copies(recipe: Recipe) -> None:
    text = (REPOSITORY / recipe.dockerfile).read_text()
    copied = re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE)
    assert sorted(copied) == sorted(recipe.inputs)
    assert ("--from=assets" in text) == recipe.needs_assets
