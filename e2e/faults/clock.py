"""Sets the clock of the operators and gateways, as time services and resumed machines do; used by test_clock.py.

All pods share the machine's clock, so their programs are started anew with a library before them that moves it
(clock.c). Engines keep the machine's: theirs only dates answers and what lies in their cache.
"""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.commands import run
from e2e.faults.host import pod_processes
from e2e.faults.stage import Stage, component
from e2e.fleet import NAMESPACE, Object

SOURCE = Path(__file__).with_name("clock.c")
LIBRARY = "clock.so"
FOLDER = "/clock"
OFFSET_FILE = "/tmp/clock"
"""In the pods; the containers of one share it."""
CONFIG = "e2e-clock"
PROGRAMS = {"operator": ("operator",), "gateway": ("picker", "envoy")}
"""Containers by component."""
SIDECARS = ("envoy",)
"""Those among the init containers."""


@contextmanager
def movable_clocks(stage: Stage, scratch: Path) -> Iterator[None]:
    """Start operators and gateways with a clock that `set_clocks` moves; at the end as the chart has them."""
    fleet = stage.fleet
    fleet.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIG, "namespace": NAMESPACE},
            "binaryData": {LIBRARY: base64.b64encode(_compile(scratch)).decode()},
        }
    )
    patched: list[str] = []
    try:
        for name, containers in PROGRAMS.items():
            deployment = f"deployment/lorafleet-{name}"
            fleet.kubectl.run("patch", deployment, "-n", NAMESPACE, "-p", json.dumps(_patch(containers)))
            patched.append(deployment)
        _wait_for(stage, patched)
        yield
    finally:
        for deployment in patched:
            fleet.kubectl.run("rollout", "undo", deployment, "-n", NAMESPACE)
        _wait_for(stage, patched)
        fleet.delete("configmap", CONFIG, NAMESPACE)


def set_clocks(stage: Stage, seconds: int) -> None:
    """Move the clock of every operator and gateway to so many seconds after the machine's, at once."""
    for name in PROGRAMS:
        for pod in staying_pods(stage, name):
            (process, *_) = pod_processes(pod["metadata"]["name"], f"lorafleet_{name}")
            offset = Path(f"/proc/{process}/root{OFFSET_FILE}")
            offset.write_text(f"{seconds}\n")
            offset.chmod(0o644)


def staying_pods(stage: Stage, name: str) -> list[Object]:
    """A component's pods but those that have been told to end: gateways drain for a while."""
    pods = stage.fleet.list("pods", NAMESPACE, component(name))
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def _wait_for(stage: Stage, deployments: list[str]) -> None:
    for deployment in deployments:
        stage.fleet.kubectl.run("rollout", "status", deployment, "-n", NAMESPACE, "--timeout=180s")


def _compile(scratch: Path) -> bytes:
    library = scratch / LIBRARY
    run(["gcc", "-shared", "-fPIC", "-O2", f'-DOFFSET_FILE="{OFFSET_FILE}"', SOURCE, "-o", library])
    return library.read_bytes()


def _patch(containers: tuple[str, ...]) -> dict[str, object]:
    """A strategic merge patch of a Deployment: the library before these containers' programs."""
    changes = [
        {
            "name": name,
            "env": [{"name": "LD_PRELOAD", "value": f"{FOLDER}/{LIBRARY}"}],
            "volumeMounts": [{"name": CONFIG, "mountPath": FOLDER, "readOnly": True}],
        }
        for name in containers
    ]
    spec = {
        "containers": [each for each in changes if each["name"] not in SIDECARS],
        "initContainers": [each for each in changes if each["name"] in SIDECARS],
        "volumes": [{"name": CONFIG, "configMap": {"name": CONFIG}}],
    }
    return {"spec": {"template": {"spec": {key: value for key, value in spec.items() if value}}}}
