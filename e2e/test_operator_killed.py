"""With the operator gone the gateway serves on; when it returns it converges to what was changed meanwhile."""

from collections.abc import Iterator

import pytest

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client
from e2e.fleet import NAMESPACE, Fleet, adapter, holds
from e2e.waiting import wait_until

OPERATORS = "app.kubernetes.io/component=operator"


def operators(fleet: Fleet) -> list[str]:
    """Names of the operator's pods."""
    return [pod["metadata"]["name"] for pod in fleet.list("pods", NAMESPACE, OPERATORS)]


def lease_holder(fleet: Fleet) -> str:
    """Who leads; empty while nobody does."""
    lease = fleet.get("lease", "lorafleet-operator", NAMESPACE)
    return str((lease or {}).get("spec", {}).get("holderIdentity") or "")


@pytest.fixture
def no_operator(fleet: Fleet, acme: Client) -> Iterator[None]:
    """Every operator pod killed without a chance to say goodbye, and none started again until the test ends."""
    fleet.kubectl.run("scale", "deployment", "lorafleet-operator", "-n", NAMESPACE, "--replicas=0")
    fleet.kubectl.run("delete", "pods", "-n", NAMESPACE, "-l", OPERATORS, "--grace-period=0", "--force")
    wait_until(lambda: not operators(fleet), seconds=30, what="no operator pod")
    yield
    fleet.kubectl.run("scale", "deployment", "lorafleet-operator", "-n", NAMESPACE, "--replicas=2")
    fleet.delete("loraadapter", "robot")


def test_the_gateway_serves_on_and_the_operator_converges(
    fleet: Fleet, acme: Client, globex: Client, no_operator: None
) -> None:
    fleet.apply(adapter("robot"))
    for question in UNSEEN[:2]:
        assert style_of(acme.ask("pirate", question)) == "pirate"
        assert style_of(globex.ask("support", question)) == "support"
    assert "conditions" not in (fleet.get("loraadapter", "robot") or {}).get("status", {})
    fleet.kubectl.run("scale", "deployment", "lorafleet-operator", "-n", NAMESPACE, "--replicas=2")
    took = wait_until(lambda: holds(fleet.get("loraadapter", "robot"), "Ready"), seconds=60, what="robot Ready")
    print(f"\nReady {took:.1f} s after the operator's return")


def test_a_killed_leader_is_replaced(fleet: Fleet, acme: Client) -> None:
    lease = fleet.get("lease", "lorafleet-operator", NAMESPACE)
    assert lease
    holder = lease["spec"]["holderIdentity"]
    (leader,) = (
        each["metadata"]["name"]
        for each in fleet.list("pods", NAMESPACE, OPERATORS)
        if each["metadata"]["name"] in holder
    )
    fleet.kubectl.run("delete", "pod", leader, "-n", NAMESPACE, "--grace-period=0", "--force")
    wait_until(
        lambda: (
            (fleet.get("lease", "lorafleet-operator", NAMESPACE) or {})["spec"]["holderIdentity"] not in ("", holder)
        ),
        seconds=45,
        what="another leader",
    )
    fleet.apply(adapter("robot"))
    try:
        wait_until(lambda: holds(fleet.get("loraadapter", "robot"), "Ready"), seconds=30, what="robot Ready")
    finally:
        fleet.delete("loraadapter", "robot")
