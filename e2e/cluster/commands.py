"""Runs external programs and reports progress; used by every module of the local cluster, decides nothing."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from e2e.cluster.errors import CommandFailed, ToolMissing


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | bytes | None = None,
    log: Path | None = None,
) -> str:
    """Run `command` to its end and return its standard output.

    `env` adds to the present environment. With `log`, all output is appended to that file and "" returned.
    Raises CommandFailed with the last lines of what the program said, ToolMissing when it does not exist.
    """
    words = [str(word) for word in command]
    given = stdin.encode() if isinstance(stdin, str) else stdin
    merged = {**os.environ, **env} if env else None
    if log is None:
        try:
            done = subprocess.run(words, cwd=cwd, env=merged, input=given, capture_output=True, check=False)
        except FileNotFoundError as missing:
            raise ToolMissing(f"{words[0]} is not installed") from missing
        if done.returncode:
            raise CommandFailed(words, done.returncode, (done.stderr or done.stdout).decode(errors="replace"))
        return done.stdout.decode(errors="replace")
    require_tool(words[0])
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        status = subprocess.run(
            words, cwd=cwd, env=merged, input=given, stdout=sink, stderr=subprocess.STDOUT, check=False
        ).returncode
    if status:
        raise CommandFailed(words, status, log.read_text(errors="replace")[-4000:] + f"\n(see {log})")
    return ""


@contextmanager
def pipe_into(command: Sequence[str | Path]) -> Iterator[IO[bytes]]:
    """Run `command` while the block writes its standard input. Raises CommandFailed when it ends badly."""
    words = [str(word) for word in command]
    require_tool(words[0])
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        assert child.stdin is not None
        try:
            with suppress(BrokenPipeError), child.stdin as stream:  # its status says more than the broken pipe
                yield stream
        finally:
            status = child.wait()
        output.seek(0)
        if status:
            raise CommandFailed(words, status, output.read().decode(errors="replace"))


def succeeds(command: Sequence[str | Path]) -> bool:
    """Whether `command` ends with status 0; its output is dropped. A missing program counts as a failure."""
    try:
        run(command)
    except (CommandFailed, ToolMissing):
        return False
    return True


def require_tool(name: str) -> None:
    """Raise ToolMissing unless `name` is a program that can be run."""
    if shutil.which(name) is None:
        raise ToolMissing(f"{name} is not installed")


def say(message: str) -> None:
    """Print one line of progress to standard error (standard output is kept for answers)."""
    print(f"[cluster] {message}", file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce `title`, and when the block is done, how many seconds it took."""
    say(f"{title} ...")
    begun = time.monotonic()
    yield
    say(f"{title}: done in {time.monotonic() - begun:.1f} s")
