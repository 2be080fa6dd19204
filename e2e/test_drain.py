"""`kubectl drain`: what only the drained replica has moves to another first, and nobody notices."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import openai
import pytest

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client
from e2e.cluster.places import SECOND
from e2e.engines import POOL, engine_states, holders, ready_replicas
from e2e.fleet import DEMO, Fleet, adapter
from e2e.waiting import wait_until
from lorafleet_contracts.admin import VersionPhase

FIRST = "lorafleet"
"""The first node."""
LEAVING, STAYING = f"{POOL}-shared-1", f"{POOL}-shared-0"
COLD = tuple(f"cold-{number}" for number in range(4))
"""Adapters that nobody asks for: one copy each."""
STYLES = ("pirate", "shout")


@dataclass
class Seen:
    """What clients got while a node was drained."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)


@contextmanager
def asking(client: Client) -> Iterator[Seen]:
    """One question after the other for each adapter while the block runs. Nobody asks twice."""
    seen, stop = Seen(), threading.Event()

    def ask(model: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                answer = client.ask(model, UNSEEN[number % len(UNSEEN)])
            except openai.APIError as error:
                seen.wrong.append(f"{model}: {error!r}")
                continue
            if style_of(answer) == model:
                seen.right += 1
            else:
                seen.wrong.append(f"{model} answered {answer!r}")

    threads = [threading.Thread(target=ask, args=(model,)) for model in STYLES]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def resident(fleet: Fleet, replica: str) -> set[str]:
    """Names of the adapters that a replica answers with."""
    state = engine_states(fleet, only=replica).get(replica)
    versions = state.versions if state else []
    return {each.display.name for each in versions if each.display and each.phase is VersionPhase.RESIDENT}


def node_of(fleet: Fleet, pod: str) -> str:
    """Where a pod runs."""
    return str((fleet.get("pod", pod) or {}).get("spec", {}).get("nodeName"))


def is_going(fleet: Fleet, uid: str) -> bool:
    """Whether the replica of that uid has been told to end, or has ended."""
    meta = (fleet.get("pod", LEAVING) or {}).get("metadata", {})
    return meta.get("uid") != uid or "deletionTimestamp" in meta


@pytest.fixture
def stage(fleet: Fleet, acme: Client) -> Iterator[Fleet]:
    """One replica on each node, and some adapters with one copy each, on either of them."""
    try:
        if node_of(fleet, LEAVING) != SECOND.name:
            fleet.kubectl.run("cordon", FIRST)
            fleet.kubectl.run("delete", "pod", LEAVING, "-n", DEMO, "--grace-period=5")
            wait_until(lambda: LEAVING in ready_replicas(fleet), seconds=150, what="the replica on the second node")
            fleet.kubectl.run("uncordon", FIRST)
        fleet.apply(*(adapter(name, source="pirate") for name in COLD))
        fleet.wait_ready()
        yield fleet
    finally:
        fleet.kubectl.run("uncordon", FIRST)
        fleet.kubectl.run("uncordon", SECOND.name)
        for name in COLD:
            fleet.delete("loraadapter", name)
        wait_until(lambda: len(ready_replicas(fleet)) == 2, seconds=180, what="two replicas again")


def drain(fleet: Fleet) -> subprocess.Popen[str]:
    """`kubectl drain` of the second node, under way."""
    own = [f"--kubeconfig={fleet.kubectl.kubeconfig}"] if fleet.kubectl.kubeconfig else []
    words = ["drain", SECOND.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s"]
    return subprocess.Popen(
        [str(fleet.kubectl.program), *own, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_drained_replicas_adapters_are_elsewhere_before_it_goes(stage: Fleet, acme: Client) -> None:
    alone = {name for name in COLD if holders(stage, name) == {LEAVING}}
    assert alone, "the stage: something that only the drained replica has"
    uid = (stage.get("pod", LEAVING) or {})["metadata"]["uid"]
    with asking(acme) as seen:
        draining = drain(stage)
        try:
            while not is_going(stage, uid):
                assert draining.poll() in (None, 0), draining.stdout and draining.stdout.read()
            assert alone <= resident(stage, STAYING)
            told, _ = draining.communicate(timeout=240)
        finally:
            draining.kill()
        assert draining.returncode == 0, told
        assert "disruption budget" in told, "the budget held the eviction until the adapters had moved"
        wait_until(lambda: LEAVING in ready_replicas(stage), seconds=180, what="the replica on the other node")
    assert node_of(stage, LEAVING) == FIRST
    assert seen.right > 0
    assert not seen.wrong
