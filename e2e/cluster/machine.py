"""What the local cluster needs of the machine: packages, free disk, sole use; checked before anything is started."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from e2e.cluster.commands import require_tool, run, say, step
from e2e.cluster.errors import ClusterBusy, ClusterError, CommandFailed, DiskTooSmall

NODE_PACKAGES = (
    "busybox-static",  # the pause image's one program
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "iproute2",
    "ipset",
    "iptables",
    "openssl",
    "procps",
    "runc",
    "socat",
)
IMAGE_PACKAGES = ("buildah", "debian-archive-keyring", "debootstrap", "docker-registry")
_APT_WAIT = 120
"""Seconds for another's apt-get to end."""
_GIGABYTE = 1_000_000_000


def require_root() -> None:
    """Raise ClusterError unless this process may mount, start containers and install packages."""
    if os.geteuid() != 0:
        raise ClusterError("the local cluster needs root (or set KUBECONFIG to use a cluster of your own)")


def install_packages(names: tuple[str, ...]) -> None:
    """Install those Debian packages of `names` that are missing; a second or less when none is.

    One at a time: tests that run beside each other may need the same package.
    """
    with (Path(tempfile.gettempdir()) / "lorafleet-packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [name for name in names if not _is_installed(name)]
        if missing:
            _install_missing(missing)


def _is_installed(name: str) -> bool:
    """Not so one that was removed and has left its configuration."""
    try:
        return run(["dpkg-query", "--show", "--showformat=${db:Status-Status}", name]) == "installed"
    except CommandFailed:
        return False


def _install_missing(missing: Sequence[str]) -> None:
    require_tool("apt-get")
    with step(f"installing {' '.join(missing)}"):
        try:
            _install(missing)
        except CommandFailed:  # package lists that are absent or out of date
            run(["apt-get", "--quiet", "update"])
            _install(missing)


def _install(names: Sequence[str]) -> None:
    flags = ["--quiet", "--yes", "--no-install-recommends", "--no-remove", "-o", f"DPkg::Lock::Timeout={_APT_WAIT}"]
    run(["apt-get", "install", *flags, *names], env={"DEBIAN_FRONTEND": "noninteractive"})


def check_disk(folder: Path, gigabytes: int, purpose: str) -> None:
    """Raise DiskTooSmall unless the file system of `folder` has `gigabytes` (10^9 bytes) free."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < gigabytes * _GIGABYTE:
        raise DiskTooSmall(
            f"{purpose} needs {gigabytes} GB free under {folder}, which has {free / _GIGABYTE:.1f} GB;"
            " free some, or point LORAFLEET_CACHE at a larger disk"
        )


@contextmanager
def hold_machine(lock: Path, patience_seconds: float = 900.0) -> Iterator[None]:
    """Hold the machine for one run; waits that long for another run to end. Raises ClusterBusy when it does not."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience_seconds
    with lock.open("w") as handle:
        if not _try_lock(handle):
            say(f"waiting for another run, which holds {lock} ...")
            while not _try_lock(handle):
                if time.monotonic() > deadline:
                    raise ClusterBusy(f"another run of the local cluster holds {lock}; wait for it, or end it")
                time.sleep(0.5)
        yield


def _try_lock(handle: TextIO) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
