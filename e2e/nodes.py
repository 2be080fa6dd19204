"""Where replicas run, on the two nodes of the local cluster; used by the tests that drain or lose one."""

from collections.abc import Mapping

from e2e.cluster.places import SECOND
from e2e.engines import ready_replicas
from e2e.fleet import DEMO, Fleet
from e2e.waiting import wait_until

FIRST_NODE, SECOND_NODE = "lorafleet", SECOND.name


def node_of(fleet: Fleet, pod: str) -> str:
    """Where a pod of the demo runs; empty where it does not."""
    return str((fleet.get("pod", pod) or {}).get("spec", {}).get("nodeName") or "")


def place(fleet: Fleet, wanted: Mapping[str, str]) -> None:
    """Have replicas run on nodes: those that run elsewhere are made anew."""
    for pod, node in wanted.items():
        if node_of(fleet, pod) == node:
            continue
        other = FIRST_NODE if node == SECOND_NODE else SECOND_NODE
        fleet.kubectl.run("cordon", other)
        try:
            fleet.kubectl.run("delete", "pod", pod, "-n", DEMO, "--grace-period=5")
            wait_until(lambda pod=pod: pod in ready_replicas(fleet), seconds=150, what=f"{pod} on {node}")
        finally:
            fleet.kubectl.run("uncordon", other)


def uncordon_all(fleet: Fleet) -> None:
    """Pods may run everywhere again."""
    for node in (FIRST_NODE, SECOND_NODE):
        fleet.kubectl.run("uncordon", node)
