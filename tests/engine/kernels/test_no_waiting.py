"""No kernel waits for another block: blocks that are not all on the device at once would wait for ever."""

import ast
from pathlib import Path

import pytest

import lorafleet_engine.kernels

FOLDER = Path(next(iter(lorafleet_engine.kernels.__path__)))
FILES = sorted(FOLDER.rglob("*.py"))
SPINS = {"atomic_cas", "atomic_xchg"}


def is_kernel(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(each) for each in node.decorator_list)


def waits(kernel: ast.AST) -> list[str]:
    """What could be the loop or the lock of a wait. A block may count arrivals; whoever is last goes on, none waits."""
    return [
        ast.unparse(node)
        for node in ast.walk(kernel)
        if isinstance(node, ast.While) or (isinstance(node, ast.Attribute) and node.attr in SPINS)
    ]


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(FOLDER)) for file in FILES])
def test_no_kernel_waits(file: Path) -> None:
    kernels = [node for node in ast.walk(ast.parse(file.read_text())) if is_kernel(node)]
    assert [wait for kernel in kernels for wait in waits(kernel)] == []


def test_there_are_kernels_and_a_wait_is_seen() -> None:
    assert sum(is_kernel(node) for file in FILES for node in ast.walk(ast.parse(file.read_text()))) > 10
    spin = "@triton.jit\ndef kernel(gate):\n    while tl.atomic_cas(gate, 1, 1) == 0:\n        pass\n"
    assert len(waits(ast.parse(spin))) == 2
