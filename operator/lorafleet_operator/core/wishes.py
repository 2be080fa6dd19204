"""From cases to what placement takes: which versions should be somewhere, and what room the replicas have.

Called by residency.py; takes the engines' state as the truth about their memory, decides no place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lorafleet_contracts.admin import Tier, VersionPhase, VersionState
from lorafleet_contracts.names import version_key
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.capability import capacity_of
from lorafleet_operator.core.manifests.quantities import parse_bytes
from lorafleet_operator.core.places import STAYS, Bin, Item, Policy
from lorafleet_operator.core.popularity import Pace, Rates, Track
from lorafleet_operator.core.snapshot import PoolSnapshot
from lorafleet_operator.core.view import View

HOUR = 3600.0
SURGE, SUDDEN = 0.5, 2.0
"""Of what one replica can do, and of its own slow mean: an adapter that of late is asked for so much is taken for as
popular as that at once, and not only when the slow mean has come to it, by which time a queue would be minutes long."""
COMING = frozenset({VersionPhase.FETCHING, VersionPhase.LOADING})


@dataclass(frozen=True, slots=True)
class Rules:
    """What a pool says about places: the load of its sets, and with what tenants' own replicas answer, `every` load;
    requests a second that a replica can do, bytes of its host cache, redundancy, moves an hour at most."""

    load: Track
    every: Track
    capacity: float
    host_cache: int
    redundancy: int
    moves_per_hour: int

    def policy(self, view: View) -> Policy:
        """One move now, or none: so far apart that no hour has more than it may."""
        due = self.moves_per_hour > 0 and view.now >= view.memory.moved_at + HOUR / self.moves_per_hour
        return Policy(self.redundancy, int(due), self.capacity)

    def loads(self, uid: str) -> tuple[float, float]:
        """Requests a second of an adapter here, and on tenants' own replicas."""
        here, every = (each.adapters.get(uid, Rates()).requests_per_s for each in (self.load, self.every))
        return load_of(here, self.load.total.requests_per_s, self.capacity), max(every.slow - here.slow, 0.0)


@dataclass(frozen=True, slots=True)
class Wish:
    """A version (`key`) that should be somewhere in the set of replicas; `fixed` ones only stay where they are."""

    case: Case
    key: str
    digest: str
    bytes: int
    count: int
    fixed: bool


def load_of(pace: Pace, total: Pace, capacity: float) -> float:
    """Requests a second that an adapter is taken to be asked for: the slow mean, the fast one where it surges.

    That is put to the scale of the others' slow means (`total` of all), so that where all rise, as with a new operator,
    none is taken for the only one.
    """
    scaled = pace.fast * min(total.slow / total.fast, 1.0) if total.fast > 0 else 0.0
    return scaled if pace.fast >= SURGE * capacity and scaled >= SUDDEN * pace.slow else pace.slow


def rules_of(spec: LoraPoolSpec, here: PoolSnapshot, every: Track) -> Rules:
    """A pool's rules; the snapshot `here` has the load less what tenants' own replicas answer."""
    return Rules(
        load=here.load,
        every=every,
        capacity=capacity_of(here.capacity, here.pool.status).effective_requests_per_s,
        host_cache=parse_bytes(spec.engine.memory.host_cache),
        redundancy=spec.replicas.redundancy,
        moves_per_hour=spec.placement.max_moves_per_hour,
    )


def wishes_of(case: Case, view: View) -> list[Wish]:
    """The version that should serve, and the one that does until then."""
    uid, wishes = case.adapter.meta.uid, []
    serving = version_key(uid, case.serving) if case.serving is not None else ""
    if case.target is not None and case.verification.facts is not None and case.adapter.spec is not None:
        key = version_key(uid, case.target)
        # A new version is to be at once where as many can take over as the old one has.
        least = len(view.holders.get(serving, ())) if serving != key else 0
        count = len(view.usable) if case.everywhere else max(case.adapter.spec.min_replicas, least)
        wishes.append(Wish(case, key, case.target, case.verification.facts.bytes, count, fixed=False))
    if case.serving is not None and case.serving != case.target:
        # Until a verdict moves the routing, what serves stays; where it was lost, its files may still be cached.
        fixed = case.suspended or case.revoked
        count = max(len(view.holders.get(serving, ())), 0 if fixed else 1)
        wishes.append(Wish(case, serving, case.serving, case.adapter.status.bytes or 0, count, fixed))
    return wishes


def item_of(wish: Wish, view: View, rules: Rules) -> Item:
    """What placement should know of a wish."""
    adapter, holders = wish.case.adapter, frozenset(view.holders.get(wish.key, ()))
    status, spec = adapter.status, adapter.spec
    asks = spec if wish.case.denial is None else None  # what is refused gives no privileges to what still serves
    recorded = {each.replica: each.reason for each in status.placements if each.digest == wish.digest}
    reasons = {name: recorded.get(name) or view.reasons.get((name, wish.key)) or STAYS for name in holders}
    held = {name: view.versions[name].get(wish.key) for name in holders}
    load, away = rules.loads(adapter.meta.uid) if wish.digest == wish.case.target else (0.0, 0.0)
    return Item(
        key=wish.key,
        age=adapter.meta.created,
        bytes=wish.bytes,
        count=wish.count,
        holders=holders,
        avoid=view.silent | view.failed.get(wish.key, frozenset()),
        reasons=reasons,
        near=view.inspected.get(wish.case.inspection, ""),
        asked={name: each.wanted for name, each in held.items() if each is not None},
        load=load,
        away=away,
        pinned=asks is not None and asks.pinned,
        priority=asks.priority if asks is not None else 0,
        had=status.replicas.desired if status.replicas is not None and status.digest == wish.digest else 0,
        fixed=wish.fixed,
    )


def bins_of(view: View, wishes: Sequence[Wish], rules: Rules) -> list[Bin]:
    """The room of the set's usable replicas, less what no wish stands for."""
    wished = {wish.key for wish in wishes}
    replicas = list(view.usable.values())
    # While all are in one zone, or none is known, they fail with their nodes.
    zones = len({each.zone for each in replicas}) > 1
    return [
        Bin(
            each.name,
            budget=memory.adapters,
            others=_others(view.versions[each.name].values(), wished, memory.adapters_used),
            free=memory.adapters - memory.adapters_used,
            host=rules.host_cache,
            domain=(each.zone if zones else each.node),
            leaving=each.name in view.leaving,
        )
        for each in replicas
        if each.state and (memory := each.state.memory)
    ]


def _others(versions: Iterable[VersionState], wished: set[str], used: int) -> int:
    """Bytes on a GPU that no wish stands for; `used` are all that the engine counts."""
    ours = others = 0
    for version in versions:
        if version.key in wished and version.phase != VersionPhase.DRAINING:
            ours += version.bytes if version.tier is Tier.GPU else 0
        elif version.tier is Tier.GPU or version.phase in COMING:
            others += version.bytes
    return max(others, used - ours)
