"""The stage of every fault: two replicas with every adapter on both, and the watch that is kept while something breaks.

A test makes its fault inside `fault(...)`; what must hold of any fault is checked at the block's end, and the times are
recorded for docs/reliability.md.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from e2e.cluster.errors import ClusterError
from e2e.engines import POOL, engine_states
from e2e.faults.witness import Account, Tally, Witness
from e2e.fleet import DEMO, KINDS, NAMESPACE, Fleet, condition, holds
from e2e.reliability.records import write_record
from e2e.waiting import wait_until

ADAPTERS = ("pirate", "shout", "support")
READY_SECONDS = 180.0
"""Within which every fault must be repaired when the test names no other bound."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The fleet, and what the tenants' programs need to reach it. The address is the Service's own."""

    fleet: Fleet
    accounts: tuple[Account, ...]
    known: dict[str, set[str]] = field(default_factory=dict)

    def leader(self) -> str:
        """The pod of the operator that leads; empty while none does."""
        lease = self.fleet.get("lease", "lorafleet-operator", NAMESPACE)
        holder = str((lease or {}).get("spec", {}).get("holderIdentity") or "")
        names = [pod["metadata"]["name"] for pod in self.fleet.list("pods", NAMESPACE, component("operator"))]
        return next((name for name in names if name in holder), "")

    def objects(self) -> dict[str, object]:
        """Every object of the users, with its uid and what they wrote."""
        return {
            f"{kind}/{each['metadata']['name']}": (each["metadata"]["uid"], json.dumps(each["spec"], sort_keys=True))
            for kind in KINDS
            for each in self.fleet.list(kind)
        }

    def whole(self) -> bool:
        """Whether every object is Ready, nothing is degraded, and both replicas have every adapter."""
        try:
            pool = self.fleet.get("lorapool", POOL)
            everything = [each for kind in KINDS for each in self.fleet.list(kind)]
            if not all(holds(each, "Ready") for each in everything) or holds(pool, "Degraded"):
                return False
            return all(self.has_adapters(name) for name in (f"{POOL}-shared-0", f"{POOL}-shared-1"))
        except (ClusterError, ConnectionError, OSError):  # the API server is on its way back
            return False

    def has_adapters(self, replica: str) -> bool:
        """Whether a replica has every adapter resident, by its own word."""
        state = engine_states(self.fleet, replica).get(replica)
        resident = {each.display.name for each in state.versions if each.display} if state else set()
        return set(ADAPTERS) <= resident


@dataclass(slots=True)
class Watch:
    """What a test tells about its fault."""

    witness: Witness
    tally: Tally
    broken_at: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    """Objects (`kind/name`) that the test itself makes, changes or deletes."""

    def broken(self) -> None:
        """Call right before the fault."""
        self.broken_at = time.monotonic()

    def since(self) -> float:
        """Seconds since the fault."""
        return time.monotonic() - self.broken_at

    def wait_for_answers(self, each: int, seconds: float = 90) -> None:
        """Wait until every model has given that many more right answers."""
        before = dict(self.tally.right)
        models = self.witness.styles
        wait_until(
            lambda: all(self.tally.right.get(model, 0) >= before.get(model, 0) + each for model in models),
            seconds=seconds,
            what=f"right answers of every model ({self.tally.counts()})",
        )


@contextmanager
def fault(
    stage: Stage,
    name: str,
    title: str,
    *,
    within: float = READY_SECONDS,
    cuts_streams: bool = False,
    retries: int = 0,
) -> Iterator[Watch]:
    """Keep watch over the block's fault. `retries`: how often the client's library may try again by itself."""
    before = stage.objects()
    witness = Witness([replace(each, retries=retries) for each in stage.accounts], stage.known)
    witness.learn()
    with witness.asking() as tally:
        watch = Watch(witness, tally)
        watch.wait_for_answers(1)
        yield watch
        wait_until(stage.whole, seconds=max(1.0, within - watch.since()), what="everything is whole", pause=0.5)
        watch.seconds["ready"] = watch.since()
        watch.wait_for_answers(1)
    ended = [end for _, end, _ in tally.failed] + tally.cut_at
    watch.seconds["traffic"] = max([0.0, *(end - watch.broken_at for end in ended)])
    print(f"\n{title}: {watch.seconds} {tally.counts()}")
    judge(tally, cuts_streams=cuts_streams)
    kept = {key: value for key, value in before.items() if key not in watch.changed}
    after = stage.objects()
    assert {key: after.get(key) for key in kept} == kept, "objects were lost or changed"
    seconds = {step: round(value, 1) for step, value in watch.seconds.items()}
    write_record(f"fault-{name}", {"fault": title, "seconds": seconds, "within": within, "counts": tally.counts()})


def judge(tally: Tally, *, cuts_streams: bool) -> None:
    """What holds of every fault."""
    assert not tally.wrong, tally.wrong
    assert not tally.mixed, tally.mixed
    assert not tally.silent, tally.silent
    assert not tally.failed, tally.failed
    assert cuts_streams or not tally.cut, tally.cut


def component(name: str) -> str:
    """The label selector of one of the chart's components."""
    return f"app.kubernetes.io/component={name}"


def stalled(fleet: Fleet, name: str) -> str:
    """The message of an adapter's Stalled condition; empty while it is not stalled."""
    found = condition(fleet.get("loraadapter", name, DEMO), "Stalled")
    return str(found.get("message", "")) if found.get("status") == "True" else ""


def accounts(address: str, keys: Sequence[tuple[str, str]]) -> tuple[Account, ...]:
    """Accounts of (key, model) pairs."""
    return tuple(Account(address, key, model) for key, model in keys)
