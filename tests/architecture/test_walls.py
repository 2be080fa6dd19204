"""Walls that import-linter cannot see."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELVES = ("contracts", "kube", "operator", "gateway", "engine")
PACKAGES = [path for shelf in SHELVES for path in (ROOT / shelf).glob("lorafleet_*")]
SOURCES = [path for package in PACKAGES for path in package.rglob("*.py")]
KERNELS = "kernels"
MODULE_LINES, FUNCTION_LINES, POSITIONAL = 400, 60, 5
VAGUE_NAMES = {"utils", "common", "helpers", "base", "misc", "util"}
GPU_FREE_ROOMS = [
    "lorafleet_contracts.admin",
    "lorafleet_contracts.crd",
    "lorafleet_engine.messages",
    "lorafleet_engine.scheduler",
    "lorafleet_engine.memory",
]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_operator_shelf_is_no_package() -> None:
    """operator/__init__.py would shadow the standard library's operator module."""
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_every_shelf_has_its_package() -> None:
    assert {path.parent.name for path in PACKAGES} == set(SHELVES)


@pytest.mark.parametrize("room", GPU_FREE_ROOMS)
def test_rooms_load_without_torch(room: str) -> None:
    code = f"import sys, {room}; sys.exit(1 if 'torch' in sys.modules else 0)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 0


def environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(str(ROOT / shelf) for shelf in SHELVES), "PATH": "/usr/bin:/bin"}


def modules() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in SOURCES if KERNELS not in path.parts]


def test_modules_hold_the_size_budget() -> None:
    long = [relative(path) for path in SOURCES if KERNELS not in path.parts and lines(path) > MODULE_LINES]
    assert not long, f"split these (more than {MODULE_LINES} lines): {long}"


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [
        (f"{relative(path)}:{node.lineno} {node.name}", node)
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_functions_hold_the_size_budget() -> None:
    long = [where for where, node in functions() if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES]
    assert not long, f"split these (more than {FUNCTION_LINES} lines): {long}"


def test_functions_take_few_positional_parameters() -> None:
    wide = [where for where, node in functions() if positional(node) > POSITIONAL]
    assert not wide, f"pass a frozen dataclass instead (more than {POSITIONAL} positional parameters): {wide}"


def positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_every_module_says_what_it_is_for() -> None:
    silent = [relative(path) for path, tree in modules() if tree.body and not ast.get_docstring(tree)]
    assert not silent, f"module docstrings are missing: {silent}"


def test_no_vague_module_names() -> None:
    vague = [relative(path) for path in SOURCES if path.stem in VAGUE_NAMES or path.parent.name in VAGUE_NAMES]
    assert not vague


def test_imports_are_absolute() -> None:
    relative_imports = [
        f"{relative(path)}:{node.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative_imports


def test_no_ambient_state() -> None:
    ambient = [
        f"{relative(path)}:{node.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
    ]
    assert not ambient


def test_tests_do_not_patch_our_own_names() -> None:
    forbidden = ("mock." + "patch", "monkeypatch." + "setattr(lorafleet")
    patched = [
        f"{relative(path)}:{number}"
        for path in (ROOT / "tests").rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(each in line for each in forbidden)
    ]
    assert not patched
