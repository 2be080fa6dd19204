"""Port credentials are rotated while clients ask: no request fails, and the old tokens open nothing afterwards."""

import base64
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest

from e2e.client import Client
from e2e.engines import POOL, nudge, reaching, ready_replicas
from e2e.fleet import NAMESPACE, Fleet
from e2e.traffic import tapping
from e2e.waiting import NotInTimeError, wait_until
from lorafleet_contracts.admin import METRICS_PATH, PortName
from lorafleet_contracts.names import PORT_KEYS_SECRET, EnginePort
from lorafleet_operator.shell.rotation import ROTATED

pytestmark = pytest.mark.long
QUIET, LONG_AGO = "15s", "2020-01-01T00:00:00Z"
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


@contextmanager
def commanded(fleet: Fleet) -> Iterator[Callable[[], bool]]:
    """`lorafleet ports rotate`, at work; gives whether it is done."""
    words = [sys.executable, "-m", "lorafleet_contracts.cli", "ports", "rotate", "--quiet", QUIET]
    environment = os.environ | fleet.environment()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as work:

        def done() -> bool:
            if work.poll() is None:
                return False
            assert work.returncode == 0, work.communicate()[0]
            return True

        try:
            yield done
        finally:
            work.kill()


@contextmanager
def periodic(fleet: Fleet) -> Iterator[Callable[[], bool]]:
    """The operator by itself, the period being over; its pods are killed once it has begun. Gives if it is done."""
    fleet.install(f"operator.portKeys.quiet={QUIET}")

    def stage() -> tuple[set[str], str]:
        secret = fleet.get("secret", PORT_KEYS_SECRET, NAMESPACE)
        assert secret
        return set(secret["data"]), secret["metadata"].get("annotations", {}).get(ROTATED, "")

    try:
        words = ("secret", PORT_KEYS_SECRET, "-n", NAMESPACE, "--overwrite", f"{ROTATED}={LONG_AGO}")
        fleet.kubectl.run("annotate", *words)
        wait_until(lambda: len(stage()[0]) > len(PortName), seconds=60, what="new keys beside the old ones")
        operators = ("-l", "app.kubernetes.io/component=operator", "--grace-period=0", "--force")
        fleet.kubectl.run("delete", "pods", "-n", NAMESPACE, *operators)
        yield lambda: len(stage()[0]) == len(PortName) and stage()[1] != LONG_AGO
        told = [each["reason"] for each in fleet.list("events", NAMESPACE)]
        assert "PortKeysRotated" in told
    finally:
        fleet.install()


def follow(fleet: Fleet, done: Callable[[], bool]) -> None:
    """Nudge until the rotation is done."""
    for number in range(ROTATION_SECONDS // NUDGE_SECONDS):
        nudge(fleet, number)
        with suppress(NotInTimeError):
            wait_until(done, seconds=NUDGE_SECONDS, what="the end of the rotation")
            return
    raise AssertionError(f"the rotation takes more than {ROTATION_SECONDS} s")


@pytest.mark.parametrize("rotating", [periodic, commanded])
def test_nobody_notices_that_port_credentials_are_rotated(
    fleet: Fleet, acme: Client, rotating: Callable[[Fleet], AbstractContextManager[Callable[[], bool]]]
) -> None:
    old = tokens(fleet)
    with tapping(acme, "pirate", "shout") as seen, rotating(fleet) as done:
        follow(fleet, done)
        pods = ready_replicas(fleet)
        assert pods
        follow(fleet, lambda: all(set(statuses(fleet, pod, old).values()) == {401} for pod in pods))
        answered = seen.right
        wait_until(lambda: seen.wrong or seen.right > answered + 2, seconds=60, what="answers after the rotation")
    print(f"\n{seen.right} answers meanwhile")
    assert not seen.wrong
    new = tokens(fleet)
    assert all(len(each) == 1 for each in new.values())
    for pod in pods:
        assert 401 not in statuses(fleet, pod, new).values()
