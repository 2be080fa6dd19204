"""The shell blocks of README.md and docs/: how each says that it is run, and a shell to run it in. Called by tests.

The line above a block says it: `<!-- run: HEIGHT -->` or `<!-- no-run: WHY -->`. (Not the fence itself: mkdocs takes no
words behind the language.)
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.binaries import locate
from e2e.cluster.machine import install_packages
from e2e.cluster.paths import REPOSITORY, find_cache

HEIGHTS: Mapping[str, str] = {
    "unit": "tests/docs/test_blocks.py",
    "apiserver": "tests/docs/test_blocks_on_apiserver.py",
    "cluster": "e2e/test_walkthrough.py",
    "long": "e2e/test_walkthrough.py",
}
"""Which test runs the blocks of a height."""
LANGUAGES = ("sh", "text", "yaml", "json")
TOOLS = ("curl", "jq", "openssl")
"""What the blocks use, by Debian's packages."""
_FENCE = re.compile(r"\s*```(.*)")
_TAG = re.compile(r"<!-- (run|no-run): (.+) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. A shell block has either a `height` or an `excuse`; `line` is that of its fence."""

    page: str
    line: int
    language: str
    text: str
    height: str = ""
    excuse: str = ""

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


def read_blocks() -> list[Block]:
    """All fenced blocks of README.md and docs/, in their order."""
    return [block for page in _pages() for block in _blocks_of(page)]


def pages_of(height: str) -> list[str]:
    """The pages that have shell blocks to be run at a height."""
    return sorted({block.page for block in read_blocks() if block.height == height})


def read_yaml(page: str) -> list[dict[str, Any]]:
    """The documents of a page's YAML blocks, in their order."""
    texts = (block.text for block in read_blocks() if (block.page, block.language) == (page, "yaml"))
    return [each for text in texts for each in yaml.safe_load_all(text)]


def manifests(page: str) -> list[dict[str, Any]]:
    """Those that are whole objects of Kubernetes."""
    return [each for each in read_yaml(page) if {"apiVersion", "kind", "metadata"} <= each.keys()]


@dataclass(frozen=True, slots=True)
class Shell:
    """A reader's shell in a folder like the repository's root, with the programs that the pages speak of.

    `means` are words of the pages and what stands for them here, such as the address of a registry.
    """

    folder: Path
    environment: dict[str, str]
    means: dict[str, str] = field(default_factory=dict)

    def run(self, block: Block, seconds: float = 400.0) -> str:
        """Run a block as `bash -e` does and return what it printed; what it left in the background is ended.

        Raises AssertionError with the block's place and its output when it fails.
        """
        text = block.text
        for word, meaning in self.means.items():
            text = text.replace(word, meaning)
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=self.folder, env=self.environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            said = output.read()
        ended = f"did not end in {seconds:.0f} s" if code is None else f"ended with {code}"
        assert code == 0, f"{block.where} {ended}:\n{text}\n-- it said:\n{said}"
        return said


Check = Callable[[Block, str], None]
"""Looks at what a block printed, and readies the shell for the page's next one."""
Stage = Callable[[Shell], AbstractContextManager[Check]]
"""Gives a shell what a page's reader has by the time that he comes to its first block."""


def make_shell(folder: Path, kubeconfig: Path | None = None) -> Shell:
    """A shell with copies of the chart and the examples in `folder`."""
    install_packages(TOOLS)
    for name in ("charts", "examples"):
        shutil.copytree(REPOSITORY / name, folder / name)
    programs = folder / ".programs"
    programs.mkdir()
    for name in ("helm", "kubectl"):
        (programs / name).symlink_to(locate(find_cache(), name))
    command = programs / "lorafleet"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m lorafleet_contracts.cli "$@"\n')
    command.chmod(0o755)
    environment = {
        "HOME": str(folder),
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": ":".join(sys.path),
    }
    given = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG")
    return Shell(folder, environment | ({"KUBECONFIG": given} if given else {}))


def run_page(page: str, height: str, shell: Shell, stage: Stage) -> None:
    """Run all blocks of a page that are of a height, one after the other."""
    with stage(shell) as check:
        for block in read_blocks():
            if (block.page, block.height) == (page, height):
                check(block, shell.run(block))


def _pages() -> list[Path]:
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def _blocks_of(path: Path) -> Iterator[Block]:
    page, lines = str(path.relative_to(REPOSITORY)), path.read_text().splitlines()
    opened: int | None = None
    for number, line in enumerate(lines):
        fence = _FENCE.fullmatch(line)
        if fence and opened is None:
            opened = number
        elif fence and opened is not None:
            tag = _TAG.fullmatch(lines[opened - 1].strip()) if opened else None
            kind, words = tag.groups() if tag else ("", "")
            language = lines[opened].strip().removeprefix("```")
            text = "\n".join(lines[opened + 1 : number])
            yield Block(
                page, opened + 1, language, text,
                height=words if kind == "run" else "", excuse=words if kind == "no-run" else "",
            )  # fmt: skip
            opened = None
    assert opened is None, f"{page}: the block that line {opened} opens is never closed"
