"""Pods that try connections from inside the cluster; used by the e2e tests of the network's walls."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from e2e.cluster.paths import find_cache
from e2e.engines import Trust
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
import http.client, json, socket, ssl, sys
name, roots, requests = json.loads(sys.argv[1])
def status(host, port, method, path, headers):
    connection = http.client.HTTPConnection(host, port, timeout=10)
    if name:
        plain = socket.create_connection((host, port), 10)
        connection.sock = ssl.create_default_context(cadata=roots).wrap_socket(plain, server_hostname=name)
    connection.request(method, path, b"{}" if method == "POST" else None, headers)
    return connection.getresponse().status
print(json.dumps([status(*each) for each in requests]))
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

    def request(self, requests: Sequence[tuple[Target, str, str, dict[str, str]]], trust: Trust | None) -> list[int]:
        """The HTTP status of each (target, method, path, headers), by TLS with `trust`."""
        listed = [(*target, method, path, headers) for target, method, path, headers in requests]
        name, roots = (trust.name, trust.roots) if trust else ("", "")
        return [int(str(each)) for each in self._python(REQUEST, (name, roots, listed))]

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
