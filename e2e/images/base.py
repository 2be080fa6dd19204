"""The base image: Debian with Python, made by debootstrap; stands in for python:3.11-slim-bookworm. Used by build."""

import shutil
from pathlib import Path

from e2e.cluster.commands import run, step
from e2e.cluster.leftovers import unmount_all_under
from e2e.images.store import ImageStore

_SUITE = "bookworm"
_PACKAGES = "python3,python3-venv,libpython3.11-dev,ca-certificates"
BASE_IMAGE = f"localhost/lorafleet/base:{_SUITE}"
_NOT_NEEDED = ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale")


def ensure_base(store: ImageStore, scratch: Path) -> None:
    """Make the base image unless the store has it. `scratch` is a folder for the root file system, removed after."""
    if store.has(BASE_IMAGE):
        return
    with step("making the base image (debootstrap)"):
        unmount_all_under(scratch)  # an interrupted debootstrap leaves /proc mounted
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.parent.mkdir(parents=True, exist_ok=True)
        log = store.logs / "debootstrap.log"
        flags = ["--variant=minbase", f"--include={_PACKAGES}"]
        run(["nice", "debootstrap", *flags, _SUITE, scratch], env=store.mark, log=log)
        for folder in _NOT_NEEDED:
            shutil.rmtree(scratch / folder, ignore_errors=True)
            (scratch / folder).mkdir(parents=True)
        store.import_root(scratch, BASE_IMAGE)
        shutil.rmtree(scratch)
