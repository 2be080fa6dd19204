"""The lock files agree with one another and name no place to download from."""

from pathlib import Path

import pytest

from e2e.cluster.paths import REPOSITORY

LOCKS = sorted((REPOSITORY / "requirements").glob("*.lock"))


def pins_of(path: Path) -> set[str]:
    return set(path.read_text().split("\n")) - {""}


@pytest.mark.parametrize("name", ["torch", "assets"])
def test_an_images_part_has_the_engines_versions(name: str) -> None:
    folder = REPOSITORY / "requirements"
    assert pins_of(folder / f"{name}.lock") <= pins_of(folder / "engine.lock")


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_line_is_one_exact_version(lock: Path) -> None:
    for pin in pins_of(lock):
        name, separator, version = pin.partition("==")
        assert name
        assert separator
        assert version
        assert "/" not in pin
