"""Pods that try connections from inside the cluster; used by the e2e tests of the network's walls."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from e2e.cluster.paths import find_cache
from e2e.fleet import RESTRICTED, Fleet, Object
from e2e.images.delivery import name_images

CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def state(target):
    try:
        socket.create_connection(tuple(target), 3).close()
    except OSError:
        return "closed"
    return "open"
print(json.dumps(list(ThreadPoolExecutor(32).map(state, json.loads(sys.argv[1])))))
"""
REQUEST = """
import json, sys, urllib.error, urllib.request
def status(method, url, headers):
    request = urllib.request.Request(url, b"{}" if method == "POST" else None, headers)
    try:
        return urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as refused:
        return refused.code
print(json.dumps([status(*each) for each in json.loads(sys.argv[1])]))
"""
Target = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Spot:
    """A container in which Python can be run."""

    fleet: Fleet
    namespace: str
    pod: str
    container: str

    def connect(self, targets: Sequence[Target]) -> dict[Target, str]:
        """Whether each (host, port) takes a connection: `open` or `closed`."""
        return dict(zip(targets, map(str, self._python(CONNECT, targets)), strict=True))

    def request(self, requests: Sequence[tuple[str, str, dict[str, str]]]) -> list[int]:
        """The HTTP status of each (method, URL, headers)."""
        return [int(str(each)) for each in self._python(REQUEST, requests)]

    def _python(self, program: str, argument: object) -> list[object]:
        inside = ("-n", self.namespace, "-c", self.container, self.pod, "--", "python3", "-c", program)
        return list(json.loads(self.fleet.kubectl.run("exec", *inside, json.dumps(argument))))


@contextmanager
def namespace_of_probes(fleet: Fleet, namespace: str) -> Iterator[list[Spot]]:
    """A namespace with one waiting pod on every node, as a tenant might have them; deleted after."""
    fleet.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": RESTRICTED}})
    nodes = [node["metadata"]["name"] for node in json.loads(fleet.kubectl.run("get", "nodes", "-o", "json"))["items"]]
    spots = [Spot(fleet, namespace, f"probe-{number}", "probe") for number, _ in enumerate(nodes)]
    try:
        fleet.apply(*(_pod(spot, node) for spot, node in zip(spots, nodes, strict=True)))
        fleet.kubectl.run("wait", "--for=condition=Ready", "pod", "--all", "-n", namespace, "--timeout=120s")
        yield spots
    finally:
        fleet.kubectl.run("delete", "namespace", namespace, "--wait=false")


def make_pod(name: str, namespace: str, command: list[str]) -> Object:
    """A pod of any image with Python, as Pod Security's `restricted` wants it; its container is `probe`."""
    container = {
        "name": "probe",
        "image": name_images(find_cache())["gateway"],
        "command": command,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    user = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": user,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _pod(spot: Spot, node: str) -> Object:
    """One that waits on a node."""
    pod = make_pod(spot.pod, spot.namespace, ["python3", "-c", "import time; time.sleep(3600)"])
    pod["spec"]["nodeName"] = node
    return pod
