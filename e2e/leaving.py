"""What a replica that leaves has alone, and where that is afterwards; used by the tests of drains and sizes."""

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.engines import POOL, engine_states
from e2e.fleet import DEMO, Fleet, Object, adapter
from e2e.waiting import wait_until
from lorafleet_contracts.admin import VersionPhase

LEAVING, STAYING = f"{POOL}-shared-1", f"{POOL}-shared-0"
_COLD = tuple(f"cold-{number}" for number in range(4))


@contextmanager
def cold_adapters(fleet: Fleet) -> Iterator[None]:
    """Adapters that nobody asks for, one copy each, on either of two replicas, while the block runs.

    The others are made anew first: what was asked of them before would draw all of these to the replica with less load.
    """
    try:
        others = [_manifest(each) for each in fleet.list("loraadapters")]
        fleet.kubectl.run("delete", "loraadapters", "--all", "-n", DEMO)
        fleet.apply(*others)
        fleet.apply(*(adapter(name, source="pirate") for name in _COLD))
        fleet.wait_ready()
        yield
    finally:
        for name in _COLD:
            fleet.delete("loraadapter", name)


def _manifest(found: Object) -> Object:
    """What to apply to have an object anew."""
    meta = {name: found["metadata"][name] for name in ("name", "namespace")}
    return {"apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": meta, "spec": found["spec"]}


def only_on(fleet: Fleet, replica: str) -> set[str]:
    """Names of the cold adapters that one replica has and no other. Raises NotInTimeError when there are none."""
    found = set[str]()

    def some() -> bool:
        states = engine_states(fleet)
        had = {name: {each.display.name for each in state.versions if each.display} for name, state in states.items()}
        others = set[str]().union(*(names for name, names in had.items() if name != replica))
        found.update((had[replica] - others).intersection(_COLD))
        return bool(found)

    wait_until(some, seconds=20, what=f"something that only {replica} has")
    return found


def resident(fleet: Fleet, replica: str) -> set[str]:
    """Names of the adapters that a replica answers with."""
    state = engine_states(fleet, only=replica).get(replica)
    versions = state.versions if state else []
    return {each.display.name for each in versions if each.display and each.phase is VersionPhase.RESIDENT}


def uid_of(fleet: Fleet, pod: str) -> str:
    """The uid of a pod that is there; its successor of the same name has another."""
    found = fleet.get("pod", pod)
    assert found, f"there is no pod {pod}"
    return str(found["metadata"]["uid"])


def is_going(fleet: Fleet, pod: str, uid: str) -> bool:
    """Whether the pod of that uid has been told to end, or has ended."""
    meta = (fleet.get("pod", pod) or {}).get("metadata", {})
    return meta.get("uid") != uid or "deletionTimestamp" in meta
