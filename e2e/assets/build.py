"""Builds the demo assets once: `python -m e2e.assets.build` (that is `make assets`), a no-op where they exist.

Everything is made in a temporary folder beside the final one and renamed at the end, so a build that was cut off
leaves nothing that looks finished. `current` links to the latest.
"""

import fcntl
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from e2e.assets import locate

MAX_WORKERS = 2  # each training holds about 2.5 GB


def main() -> None:
    """Build what is missing, point `current` at it and print the folder."""
    folder = locate.assets_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _remove_leftovers(folder.parent)
            _build(folder)
        _point(folder.parent / "current", folder)
    print(folder)


def _build(folder: Path) -> None:
    from e2e.assets import broken, model, recipes, train  # torch takes seconds to import: only when there is work

    started = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    _say(started, "converting the base model")
    model.convert(work / "smollm2")
    workers = min(len(os.sched_getaffinity(0)), MAX_WORKERS)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {
            pool.submit(train.train, recipe, work / "smollm2", work / "adapters" / recipe.name): recipe.name
            for recipe in recipes.RECIPES
        }
        for job in as_completed(jobs):
            job.result()
            _say(started, f"trained {jobs[job]}")
    broken.break_adapter(work / "adapters" / "robot", work / "broken")
    _open_to_all(work)
    work.rename(folder)


def _say(started: float, what: str) -> None:
    print(f"assets {time.monotonic() - started:5.0f}s  {what}", file=sys.stderr, flush=True)


def _open_to_all(work: Path) -> None:
    """Servers run as another user: safetensors writes 0600 and mkdtemp makes 0700."""
    for path in [work, *work.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def _remove_leftovers(parent: Path) -> None:
    for path in parent.glob(".building-*"):
        shutil.rmtree(path)


def _point(link: Path, folder: Path) -> None:
    fresh = link.with_name(f".current-{os.getpid()}")
    fresh.symlink_to(folder.name)
    fresh.replace(link)


if __name__ == "__main__":
    main()
