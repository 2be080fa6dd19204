"""Removes the running cluster, or whatever a killed one left behind; called by every `up` before and by `down`.

Only what is the cluster's own is touched: processes by pid and start time or by mark, mounts under its state folder,
its control group, links, rules. Binaries, images and assets stay.
"""

import errno
import shutil
import socket
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.commands import run
from e2e.cluster.network import remove_network
from e2e.cluster.places import PLACES
from e2e.cluster.processes import ProcessTable

_MOUNT_POINT_FIELD = 4
_SHIM_SOCKETS = Path("/run/containerd/s")  # containerd's choice, whatever its state folder
_LOG_LINKS = Path("/var/log/containers")  # the kubelet's
_GRACE_SECONDS = 2.0  # nothing of what they would save is kept


def remove_cluster(state: Path) -> None:
    """End its processes, then undo its mounts, network and control groups, and remove the state folder."""
    processes = ProcessTable(state)
    for place in PLACES:  # so that nobody starts again what is ended next
        for program in ("kubelet", "kube-proxy", "kube-router"):
            processes.stop(place.process(program), _GRACE_SECONDS)
    cgroups.remove()
    processes.stop_all(_GRACE_SECONDS)
    unmount_all_under(state)
    remove_network()
    remove_dead_sockets(_SHIM_SOCKETS)
    for link in _LOG_LINKS.glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(state):
            link.unlink()
    shutil.rmtree(state, ignore_errors=True)


def unmount_all_under(folder: Path) -> None:
    """Unmount everything in or below `folder`, the inner ones first."""
    for mount in reversed(mount_points_under(folder, Path("/proc/self/mountinfo").read_text())):
        run(["umount", "--lazy", mount])


def mount_points_under(folder: Path, mountinfo: str) -> list[str]:
    """Mount points in or below `folder`, in the order in which they were mounted; `mountinfo` is proc(5)'s table."""
    points = [_unescape(line.split()[_MOUNT_POINT_FIELD]) for line in mountinfo.splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder)]


def remove_dead_sockets(folder: Path) -> None:
    """Remove the Unix sockets in `folder` that nobody listens on any more."""
    for path in folder.glob("*"):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()


def _unescape(point: str) -> str:
    for escaped, plain in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        point = point.replace(escaped, plain)
    return point
