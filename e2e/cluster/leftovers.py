"""Removes the running cluster, or whatever a killed one left behind; called by every `up` before and by `down`.

Only what is the cluster's own is touched: processes by pid and start time or by mark, mounts under its state folder,
its control group, links, rules. Binaries, images and assets stay.
"""

import shutil
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.commands import run
from e2e.cluster.network import remove_network
from e2e.cluster.processes import ProcessTable

_MOUNT_POINT_FIELD = 4
_GRACE_SECONDS = 2.0  # nothing of what they would save is kept


def remove_cluster(state: Path) -> None:
    """End its processes, then undo its mounts, network and control groups, and remove the state folder."""
    processes = ProcessTable(state)
    for name in ("kubelet", "kube-proxy"):  # so that nobody starts again what is ended next
        processes.stop(name, _GRACE_SECONDS)
    cgroups.remove()
    processes.stop_all(_GRACE_SECONDS)
    for mount in reversed(mount_points_under(state, Path("/proc/self/mountinfo").read_text())):
        run(["umount", "--lazy", mount])
    remove_network()
    shutil.rmtree(state, ignore_errors=True)


def mount_points_under(folder: Path, mountinfo: str) -> list[str]:
    """Mount points in or below `folder`, in the order in which they were mounted; `mountinfo` is proc(5)'s table."""
    points = [_unescape(line.split()[_MOUNT_POINT_FIELD]) for line in mountinfo.splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder)]


def _unescape(point: str) -> str:
    for escaped, plain in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        point = point.replace(escaped, plain)
    return point
