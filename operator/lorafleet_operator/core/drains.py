"""Which replicas leave, and when each may go: what only it holds moves first. Called by the planning around placing.

A replica leaves when its set shrinks or ends, when a rollout comes to it, or when its node is cordoned. It then gets
nothing new (residency.py), and goes once all that it holds answers elsewhere; what has no other place holds up nothing,
and no move holds up longer than LEAVE_SECONDS. On a cordoned node none is evicted while another does not serve.
A set's StatefulSet is lowered, and its template let through by the partition, so that exactly the replica goes that is
empty; the disruption budget keeps the others from being evicted.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from lorafleet_operator.core.places import Placed
from lorafleet_operator.core.sets import EngineSet
from lorafleet_operator.core.snapshot import PoolSnapshot, Replica, Workload
from lorafleet_operator.core.view import View

LEAVE_SECONDS = 120.0
"""How long a replica waits for another to take what it holds. Then it goes all the same, and that is told."""


@dataclass(frozen=True, slots=True)
class Departures:
    """`sets` as the API server should hold them now; `ended` ones may be deleted.

    `late` replicas go although nobody has taken over from them; `due` is the next moment of note in epoch seconds.
    """

    sets: tuple[EngineSet, ...]
    ended: tuple[str, ...]
    late: tuple[str, ...]
    due: float | None


@dataclass(frozen=True, slots=True)
class _Roster:
    """A set's replicas by number, its StatefulSet if there is one, and how many replicas it should have."""

    pods: Mapping[int, Replica]
    workload: Workload | None
    wanted: int

    @property
    def next_in_rollout(self) -> int | None:
        """The highest replica with an old template, provided that all above it run with the newest."""
        workload = self.workload
        if workload is None or not workload.observed or workload.replicas > self.wanted:
            return None
        old = self.highest_old
        if old is None:
            return None
        above = (self.pods.get(number) for number in range(old + 1, workload.replicas))
        return old if all(each is not None and each.current and each.usable for each in above) else None

    @property
    def highest_old(self) -> int | None:
        """The highest replica with an old template."""
        old = (number for number, each in self.pods.items() if number < self.wanted and not each.current)
        return max(old, default=None)

    @property
    def incomplete(self) -> bool:
        """Whether a replica that the StatefulSet makes is not there, or does not serve."""
        size = self.workload.replicas if self.workload else 0
        return len(self.pods) < size or not all(each.usable for each in self.pods.values())

    @property
    def complete(self) -> bool:
        """Whether all replicas that the StatefulSet makes are there with the newest template."""
        size = self.workload.replicas if self.workload else 0
        return all(number in self.pods and self.pods[number].current for number in range(size))


def who_leaves(snapshot: PoolSnapshot, sets: Sequence[EngineSet]) -> frozenset[str]:
    """Names of the replicas that leave while `sets` are those that should be there.

    Those on cordoned nodes do as long as others serve: where there are none, they have to take over from the rest.
    """
    leaving = set()
    for roster in _rosters(snapshot, sets).values():
        turn = roster.next_in_rollout
        going = {each.name for number, each in roster.pods.items() if number >= roster.wanted or number == turn}
        cordoned = {each.name for each in roster.pods.values() if each.cordoned}
        serving = {each.name for each in roster.pods.values() if each.usable}
        leaving |= going | cordoned if serving - going - cordoned else going
    return frozenset(leaving)


def let_go(
    snapshot: PoolSnapshot,
    sets: Sequence[EngineSet],
    view: View,
    placed: Mapping[str, Mapping[str, Placed]],
    homes: Collection[str],
) -> Departures:
    """How far each set may go towards what it should be, with the versions of each set being `placed` as they are.

    `homes` are the sets that adapters are still routed to.
    """
    rosters = _rosters(snapshot, sets)
    needed = {
        name
        for name in view.leaving & view.usable.keys()
        if _is_alone(rosters[view.usable[name].set], view) or _holds(view.usable[name], view, placed, homes)
    }
    ends = {name: view.memory.leaving.get(name, view.now) + LEAVE_SECONDS for name in needed}
    stuck = {name for name in needed if view.now < ends[name]}
    wanted = {each.name: each for each in sets}
    return Departures(
        sets=tuple(_proceed(each, rosters[each.name], stuck, _spare(rosters[each.name], stuck, view)) for each in sets),
        ended=tuple(
            name
            for name, roster in sorted(rosters.items())
            if name not in wanted and roster.workload and not any(_stays(each, stuck) for each in roster.pods.values())
        ),
        late=tuple(sorted(needed - stuck)),
        due=min((ends[name] for name in stuck), default=None),
    )


def _rosters(snapshot: PoolSnapshot, sets: Sequence[EngineSet]) -> dict[str, _Roster]:
    pods: dict[str, dict[int, Replica]] = {each.name: {} for each in sets}
    for name in snapshot.workloads:
        pods.setdefault(name, {})
    for each in snapshot.replicas:
        _, _, number = each.name.rpartition("-")
        if number.isdecimal():
            pods.setdefault(each.set, {})[int(number)] = each
    wanted = {each.name: each.replicas for each in sets}
    return {name: _Roster(found, snapshot.workloads.get(name), wanted.get(name, 0)) for name, found in pods.items()}


def _is_alone(roster: _Roster, view: View) -> bool:
    """Whether those of a set that stay are there, but none of them serves yet."""
    staying = [each for each in roster.pods.values() if each.name not in view.leaving and not each.deleting]
    return bool(staying) and not any(each.usable for each in staying)


def _holds(replica: Replica, view: View, placed: Mapping[str, Mapping[str, Placed]], homes: Collection[str]) -> bool:
    """Whether a leaving replica answers with a version that belongs on one that stays and answers on none.

    What a set that ends has belongs on others; while gateways still send requests to it, it holds all of it.
    """
    layouts = [placed[replica.set]] if replica.set in placed else list(placed.values())
    for key in view.versions[replica.name]:
        resident = view.resident.get(key, set())
        places = {each.replica for found in layouts if key in found for each in found[key].choices} - view.leaving
        if replica.name in resident and places and not places & resident:
            return True
    return replica.set not in placed and replica.set in homes


def _stays(replica: Replica | None, stuck: set[str]) -> bool:
    """Whether a leaving replica is there and has to wait. One that does not serve has nothing to lose."""
    return replica is not None and replica.name in stuck


def _proceed(wanted: EngineSet, roster: _Roster, stuck: set[str], spare: int) -> EngineSet:
    workload = roster.workload
    if workload is None:
        return replace(wanted, partition=wanted.replicas, disruptions=spare)
    size = max(workload.replicas, wanted.replicas)
    while size > wanted.replicas and not _stays(roster.pods.get(size - 1), stuck):
        size -= 1
    return replace(wanted, replicas=size, partition=_partition(roster, workload, stuck, size), disruptions=spare)


def _partition(roster: _Roster, workload: Workload, stuck: set[str], size: int) -> int:
    """From which number on replicas may take the newest template."""
    if workload.observed and roster.complete:
        # Until its controller calls the rollout done, it would make lost replicas with the old template again.
        return size if workload.rolled_out else 0
    old = roster.highest_old
    if not workload.observed or workload.replicas > roster.wanted or old is None:
        return min(workload.partition, size)
    turn = roster.next_in_rollout
    return old + 1 if turn is None or _stays(roster.pods[turn], stuck) else old


def _spare(roster: _Roster, stuck: set[str], view: View) -> int:
    """How many replicas the disruption budget lets go.

    A drain cordons the node a moment before it evicts: so none may be evicted that has something another could take,
    but where a node is cordoned and its replicas have been emptied. Where nodes can't be read no drain would ever end.
    A replica that is away takes the budget; when it is back, those still on a drained node are emptied first.
    """
    usable = [each for each in roster.pods.values() if each.usable]
    cordoned = [each for each in usable if each.cordoned]
    if cordoned:
        return 0 if roster.incomplete or any(each.name in stuck for each in cordoned) else 1
    unknown = any(each.cordoned is None for each in usable)
    if unknown or len([each for each in usable if each.name not in view.leaving]) < 2:
        return 1
    only_here = any(view.resident.get(key) == {each.name} for each in usable for key in view.versions[each.name])
    return 0 if only_here else 1
