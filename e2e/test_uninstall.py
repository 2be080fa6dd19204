"""Uninstalling leaves nothing behind, although no engine ever lived to end in order."""

import yaml

from e2e.engines import POOL, ready_replicas
from e2e.fleet import QUICKSTART, Fleet
from e2e.removal import remove_all, wait_until_nothing_is_left
from e2e.waiting import wait_until

DEAD = "localhost/lorafleet/engine:none"  # no node has it, no registry gives it


def apply_with_dead_engines(fleet: Fleet) -> None:
    """The quickstart with engines of which none ever lives."""
    fleet.delete("lorapool", POOL)
    wait_until(lambda: not fleet.list("pods", selector=f"lorafleet.io/pool={POOL}"), seconds=120, what="engines gone")
    documents = list(yaml.safe_load_all(fleet.kubectl.run("kustomize", str(QUICKSTART))))
    for each in documents:
        if each["kind"] == "LoraPool":
            each["spec"]["engine"].setdefault("pod", {})["image"] = DEAD
    fleet.apply(*documents)


def stuck_engines(fleet: Fleet) -> int:
    """How many engines cannot have their image."""
    waiting = [
        pod["status"].get("containerStatuses", [{}])[0].get("state", {}).get("waiting", {}).get("reason", "")
        for pod in fleet.list("pods", selector=f"lorafleet.io/pool={POOL}")
    ]
    return sum(reason in ("ErrImagePull", "ImagePullBackOff") for reason in waiting)


def test_nothing_is_left_with_every_engine_dead(fleet: Fleet) -> None:
    fleet.install()
    apply_with_dead_engines(fleet)
    wait_until(lambda: stuck_engines(fleet) == 2, seconds=60, what="both engines dead")
    assert not ready_replicas(fleet)
    remove_all(fleet)
    wait_until_nothing_is_left(fleet)
