"""Port credentials are rotated while clients ask: no request fails, and the old tokens open nothing afterwards."""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.client import Client
from e2e.engines import POOL, reaching, ready_replicas
from e2e.fleet import DEMO, NAMESPACE, Fleet
from e2e.traffic import tapping
from e2e.waiting import wait_until
from lorafleet_contracts.admin import METRICS_PATH, PortName
from lorafleet_contracts.names import LABEL_POOL, EnginePort

pytestmark = pytest.mark.long
QUIET = "15s"
ROTATION_SECONDS, NUDGE_SECONDS = 400, 3
PATHS = {EnginePort.SERVING: "/v1/models", EnginePort.STATE: METRICS_PATH, EnginePort.ADMIN: "/nothing"}


def tokens(fleet: Fleet) -> dict[str, list[str]]:
    """What the pool's engines accept, by port, the one in use first."""
    secret = fleet.get("secret", f"{POOL}-tokens")
    assert secret
    return {port.value: base64.b64decode(secret["data"][port.value]).decode().split() for port in PortName}


def statuses(fleet: Fleet, pod: str, presented: dict[str, list[str]]) -> dict[str, int]:
    """What each port of an engine answers to its token."""
    engine = fleet.get("pod", pod)
    assert engine
    found = {}
    for port, path in PATHS.items():
        name = port.name.lower()
        with reaching(fleet, engine, port) as client:
            answer = client.get(path, headers={"authorization": f"Bearer {presented[name][0]}"})
        found[name] = answer.status_code
    return found


def nudge(fleet: Fleet, number: int) -> None:
    """Have the kubelets look at the mounts now: they do so when a pod changes, and else once in about a minute."""
    for namespace, selector in ((DEMO, f"{LABEL_POOL}={POOL}"), (NAMESPACE, "app.kubernetes.io/component=gateway")):
        words = ("pods", "-n", namespace, "-l", selector, "--overwrite", f"e2e/look={number}")
        fleet.kubectl.run("annotate", *words)


@contextmanager
def rotating(fleet: Fleet) -> Iterator["subprocess.Popen[str]"]:
    """The command, at work."""
    words = [sys.executable, "-m", "lorafleet_contracts.cli", "ports", "rotate", "--quiet", QUIET]
    environment = os.environ | fleet.environment()
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as command:
        try:
            yield command
        finally:
            command.kill()


def follow(fleet: Fleet, command: "subprocess.Popen[str]") -> str:
    """Nudge until the command has ended; gives what it printed."""
    for number in range(ROTATION_SECONDS // NUDGE_SECONDS):
        nudge(fleet, number)
        try:
            return command.communicate(timeout=NUDGE_SECONDS)[0]
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"the rotation takes more than {ROTATION_SECONDS} s")


def test_nobody_notices_that_port_credentials_are_rotated(fleet: Fleet, acme: Client) -> None:
    old = tokens(fleet)
    with tapping(acme, "pirate", "shout") as seen, rotating(fleet) as command:
        told = follow(fleet, command)
        answered = seen.right
        wait_until(lambda: seen.wrong or seen.right > answered + 2, seconds=60, what="answers after the rotation")
    print(f"\n{told}{seen.right} answers meanwhile")
    assert command.returncode == 0
    assert not seen.wrong
    new = tokens(fleet)
    assert all(len(each) == 1 for each in new.values())
    pods = ready_replicas(fleet)
    assert pods
    for pod in pods:
        assert set(statuses(fleet, pod, old).values()) == {401}
        assert 401 not in statuses(fleet, pod, new).values()
