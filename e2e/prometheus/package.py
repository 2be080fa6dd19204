"""Brings Debian's `prometheus` package (the server and promtool) into the cache, unpacked and not installed.

Called by `make prometheus-binary`; tests find the programs with `locate`.
"""

import os
import shutil
import tempfile
from pathlib import Path

from e2e.cluster.commands import require_tool, run, step
from e2e.cluster.errors import CommandFailed
from e2e.cluster.paths import Cache

PACKAGE = "prometheus"
PROGRAMS = ("prometheus", "promtool")


def locate(cache: Cache, name: str) -> Path:
    """Where the program `name` lies once it is there."""
    return cache.root / PACKAGE / name


def fetch_missing(cache: Cache) -> None:
    """Download and unpack the package unless both programs are there. Raises ToolMissing, CommandFailed."""
    if all(locate(cache, name).exists() for name in PROGRAMS):
        return
    for tool in ("apt-get", "dpkg-deb"):
        require_tool(tool)
    target = cache.root / PACKAGE
    target.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=PACKAGE, dir=cache.root))
    try:
        with step(f"downloading {PACKAGE}"):
            _download(scratch)
        (archive,) = scratch.glob("*.deb")
        run(["dpkg-deb", "--extract", archive, scratch / "files"])
        for name in PROGRAMS:
            os.replace(scratch / "files" / "usr" / "bin" / name, locate(cache, name))
    finally:
        shutil.rmtree(scratch)


def _download(folder: Path) -> None:
    """As root, too: apt's own user may not write there, which it only warns of."""
    command = ["apt-get", "--quiet", "download", PACKAGE]
    try:
        run(command, cwd=folder)
    except CommandFailed:  # package lists that are absent or out of date
        run(["apt-get", "--quiet", "update"])
        run(command, cwd=folder)
