"""The verdict on a pool: its status from its spec, its pods and its engines' states. Called by the planning."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from lorafleet_contracts.admin import ProblemCode
from lorafleet_contracts.conditions import ConditionType, Reason, find_condition
from lorafleet_contracts.names import SHARED_SET
from lorafleet_contracts.resources.pool import EngineSetStatus, LoraPoolSpec, LoraPoolStatus
from lorafleet_operator.core.budgets import judge_budget, known_shape, refuse_base, refuse_files
from lorafleet_operator.core.capability import capacity_of, tell
from lorafleet_operator.core.conditions import Draft, Refusal, settle
from lorafleet_operator.core.manifests.engine import dedicated_spec, refuse_gpus, resolve_device
from lorafleet_operator.core.manifests.identity import selector_text
from lorafleet_operator.core.sets import EngineSet, kind_of
from lorafleet_operator.core.snapshot import Pool, PoolSnapshot, Replica, Workload

T = ConditionType
STUCK = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "Unschedulable",
    }
)
"""Reasons of a pod that does not get on by itself soon."""
ROOM = (
    "Ask for a larger GPU, for more of them (engine.tensorParallel) or for more of its memory "
    "(engine.memory.gpuUtilizationPercent; without a GPU engine.pod.resources.limits.memory), "
    "for quantization: FP8, or choose a smaller base"
)
MOST_SETS = 16
"""In a status."""


@dataclass(frozen=True, slots=True)
class _Tally:
    """Replicas wanted and ready in all sets; whether the base is answered as the spec says, and all is as it should."""

    wanted: int
    ready: int
    answers: bool
    complete: bool


def refuse_pool(pool: Pool, cluster_wide: bool) -> Refusal | None:
    """Why no workload is made for a pool, or None."""
    spec = pool.spec
    if spec is None:
        return Refusal(Reason.INVALID, pool.invalid)
    if spec.allowed_namespaces.from_ == "Selector" and not cluster_wide:
        return Refusal(
            Reason.INVALID,
            "allowedNamespaces.from: Selector needs an operator that watches all namespaces; "
            "this one was installed with watchNamespaces. Use Same or All",
        )
    source = urlsplit(spec.base_model.source.uri)
    volumes = [volume.get("name") for volume in spec.engine.pod.volumes]
    if source.scheme == "pvc" and source.netloc not in volumes:
        return Refusal(
            Reason.INVALID,
            f"baseModel.source names volume {source.netloc!r}, which engine.pod.volumes does not have. Add it there",
        )
    shared = _refuse_pod(spec, "engine.pod", pool.status) or refuse_files(spec)
    if shared or spec.dedicated.pod.resources is None:
        return shared
    return _refuse_pod(dedicated_spec(spec), "dedicated.pod", pool.status)


def _refuse_pod(spec: LoraPoolSpec, pod: str, status: LoraPoolStatus) -> Refusal | None:
    """Why the devices that a pod (`engine.pod`, `dedicated.pod`) asks for can't run the engine, or None."""
    if spec.engine.dtype == "bfloat16" and resolve_device(spec.engine) == "cpu":
        return Refusal(
            Reason.INVALID,
            f"engine.dtype bfloat16 needs a GPU, and {pod}.resources.limits asks for none. "
            "Use dtype: float32, or ask for a GPU (nvidia.com/gpu)",
        )
    if gpus := refuse_gpus(spec.engine, pod):
        return Refusal(Reason.INVALID, gpus)
    return refuse_base(spec, pod, status)


def judge_pool(
    snapshot: PoolSnapshot, refusal: Refusal | None, sets: Sequence[EngineSet], now: float, late: Sequence[str] = ()
) -> LoraPoolStatus | None:
    """The status to write, or None when the one that stands says the same.

    `sets` are those that should be there, `late` the replicas that go although nobody has taken over from them.
    """
    pool, old = snapshot.pool, snapshot.pool.status
    tally = _count(snapshot, sets)
    if refusal is None and snapshot.refusals:
        refusal = Refusal(Reason.INVALID, f"the API server refuses {'; '.join(snapshot.refusals)}. Correct engine.pod")
    drafts = _refused(refusal) if refusal else _observed(snapshot, tally, late)
    told = _tell_sets(snapshot, sets)
    states = [each.state for each in snapshot.replicas if each.usable and each.state is not None]
    shared = next((each for each in told if each.name == SHARED_SET), EngineSetStatus(name=SHARED_SET))
    new = LoraPoolStatus(
        observed_generation=pool.meta.generation,
        conditions=settle(drafts, old.conditions, pool.meta.generation, now),
        replicas=shared.replicas,
        ready_replicas=shared.ready,
        selector=selector_text(pool.meta.name),
        sets=told[:MOST_SETS],
        budget=judge_budget(pool.spec, states, old),
        shape=known_shape(states, old),
        rank_classes=old.rank_classes,
        capacity=tell(capacity_of(snapshot.capacity, old), old.capacity),
    )
    return new if new != old else None


def _count(snapshot: PoolSnapshot, sets: Sequence[EngineSet]) -> _Tally:
    usable = [each for each in snapshot.replicas if each.usable]
    current = Counter(each.set for each in usable if each.current)
    return _Tally(
        wanted=sum(each.replicas for each in sets),
        ready=len(usable),
        answers=current[SHARED_SET] > 0,
        complete=all(
            current[each.name] >= each.replicas and _rolled_out(snapshot.workloads.get(each.name), each.replicas)
            for each in sets
        ),
    )


def _rolled_out(workload: Workload | None, wanted: int) -> bool:
    return workload is not None and workload.settled and workload.replicas == wanted


def _tell_sets(snapshot: PoolSnapshot, sets: Sequence[EngineSet]) -> list[EngineSetStatus]:
    """The sets that should be there, then those that are and should not."""
    wanted = {each.name: each for each in sets}
    present = Counter(each.set for each in snapshot.replicas if not each.deleting)
    ready = Counter(each.set for each in snapshot.replicas if each.usable)
    told = []
    for name in (*wanted, *sorted((snapshot.workloads.keys() | present.keys()) - wanted.keys())):
        known = wanted.get(name)
        kind = known.kind if known else kind_of(name)
        ceiling = known.ceiling if known else None
        counts = {"replicas": present[name], "ready": ready[name], "desired": known.replicas if known else 0}
        message = _why(known, snapshot.pool.status)
        told.append(EngineSetStatus(name=name, kind=kind, ceiling=ceiling, message=message, **counts))
    return told


def _why(wanted: EngineSet | None, old: LoraPoolStatus) -> str:
    """Where a set's size comes from: the words of the moment when it was decided, for they have figures that move."""
    if wanted is None:
        return "no longer wanted"
    before = next((each for each in old.sets if each.name == wanted.name), None)
    return before.message if before and before.message and before.desired == wanted.replicas else wanted.why


def _refused(refusal: Refusal) -> list[Draft]:
    return [
        Draft(T.READY, False, refusal.reason, refusal.message),
        Draft(T.ACCEPTED, False, refusal.reason, refusal.message),
        Draft(T.DEGRADED, False, refusal.reason),
        Draft(T.RECONCILING, False, Reason.RECONCILED),
        Draft(T.STALLED, True, refusal.reason, refusal.message),
    ]


def _observed(snapshot: PoolSnapshot, tally: _Tally, late: Sequence[str]) -> list[Draft]:
    stuck = _find_stuck(snapshot.replicas)
    ready, complete = tally.answers, tally.complete
    progress = stuck.message if stuck else f"{tally.ready} of {tally.wanted} replicas ready"
    if late:
        progress += f"; {tell_late(late)}"
    if ready:
        readiness = Draft(T.READY, True, Reason.READY)
    else:
        readiness = Draft(T.READY, False, stuck.reason if stuck else Reason.NO_REPLICA_READY, progress)
    stalled = stuck is not None and not ready
    return [
        readiness,
        Draft(T.ACCEPTED, True, Reason.ACCEPTED),
        _degraded(snapshot.pool, tally, complete, progress),
        Draft(T.RECONCILING, False, Reason.RECONCILED)
        if (complete and not late) or stalled
        else Draft(T.RECONCILING, True, Reason.PROGRESSING, progress),
        Draft(T.STALLED, True, stuck.reason, stuck.message)
        if stalled and stuck
        else Draft(T.STALLED, False, Reason.RECONCILED),
    ]


def tell_late(late: Sequence[str]) -> str:
    """What is said of replicas that go although nobody has taken over from them."""
    return f"{', '.join(late)} must go, and no other replica has taken over all that it has"


def _degraded(pool: Pool, tally: _Tally, complete: bool, progress: str) -> Draft:
    if complete:
        return Draft(T.DEGRADED, False, Reason.FULLY_REDUNDANT)
    before = find_condition(pool.status.conditions, T.DEGRADED)
    # Redundancy can only be lost once it was there; before that, and in a rollout, the pool is on its way.
    # A set that grows with its load has not lost what it never had.
    fewer = tally.ready < sum(each.ready for each in pool.status.sets)
    had_it = before is not None and (
        before.reason == Reason.REDUNDANCY_LOST or (before.reason == Reason.FULLY_REDUNDANT and fewer)
    )
    if had_it and pool.status.observed_generation == pool.meta.generation and tally.ready < tally.wanted:
        return Draft(T.DEGRADED, True, Reason.REDUNDANCY_LOST, progress)
    return Draft(T.DEGRADED, False, Reason.PROGRESSING)


def _find_stuck(replicas: Sequence[Replica]) -> Refusal | None:
    """What keeps the first hopeless replica (by name) from running, in the engine's own words where it has some."""
    for replica in sorted(replicas, key=lambda each: each.name):
        problem = replica.state.base.problem if replica.state and not replica.state.ready else None
        if problem:
            fits = problem.code != ProblemCode.DOES_NOT_FIT
            reason = Reason.NO_REPLICA_READY if fits else Reason.BASE_DOES_NOT_FIT
            return Refusal(reason, f"replica {replica.name}: {problem.detail or problem.title}")
        if replica.waiting == Reason.BASE_DOES_NOT_FIT and not replica.deleting:
            return Refusal(Reason.BASE_DOES_NOT_FIT, f"replica {replica.name}: {replica.message}. {ROOM}")
        if not replica.deleting and not replica.usable and replica.waiting in STUCK:
            words = f": {replica.message}" if replica.message else ""
            return Refusal(Reason.NO_REPLICA_READY, f"replica {replica.name} is in {replica.waiting}{words}")
    return None
