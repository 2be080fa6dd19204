"""A bare API server for tests: etcd and kube-apiserver alone, on free ports, in a folder of the caller's.

Called by tests/support/apiserver.py and by the `apiserver` commands. No controllers run: nothing collects garbage,
namespaces that are deleted stay Terminating, and Deployments make no Pods.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.binaries import APISERVER_PROGRAMS, locate
from e2e.cluster.controlplane import ControlPlane, Endpoints, find_free_ports
from e2e.cluster.errors import ToolMissing
from e2e.cluster.paths import Cache
from e2e.cluster.processes import ProcessTable


@dataclass(frozen=True, slots=True)
class ApiServer:
    """How to reach a running API server as its administrator (group system:masters)."""

    url: str
    ca: Path
    certificate: Path
    key: Path
    kubeconfig: Path


def start_apiserver(cache: Cache, state: Path, *, die_with_parent: bool = False) -> ApiServer:
    """Start an empty API server whose every file lies in `state`, in place of an earlier one there; 3 to 10 s.

    Raises ToolMissing when its programs aren't built, NotReady when it does not come up.
    """
    for name in APISERVER_PROGRAMS:
        if not locate(cache, name).exists():
            raise ToolMissing(f"{name} is not built: run `python3 -m e2e.cluster binaries {name}`")
    stop_apiserver(state)
    secure, client, peer = find_free_ports(3)
    endpoints = Endpoints("127.0.0.1", secure_port=secure, etcd_port=client, etcd_peer_port=peer)
    control = ControlPlane(cache, state, endpoints)
    control.prepare()
    # Without a controller manager no namespace gets its default service account, which this plugin would wait for.
    flags = ["--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"]
    control.start(ProcessTable(state), flags, die_with_parent=die_with_parent)
    admin = control.authority.pair("admin")
    return ApiServer(endpoints.url, control.authority.certificate, admin.certificate, admin.key, control.kubeconfig)


def stop_apiserver(state: Path) -> None:
    """End what start_apiserver started in `state`, and remove its files (those of nobody else)."""
    ProcessTable(state).stop_all(grace_seconds=2.0)
    for folder in ("pki", "etcd", "logs"):
        shutil.rmtree(state / folder, ignore_errors=True)
    (state / "admin.kubeconfig").unlink(missing_ok=True)
