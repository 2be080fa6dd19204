"""The verdict on a pool: its status from its spec, its pods and its engines' states. Called by the planning."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from lorafleet_contracts.admin import ProblemCode
from lorafleet_contracts.conditions import ConditionType, Reason, find_condition
from lorafleet_contracts.names import SHARED_SET
from lorafleet_contracts.resources.pool import BudgetStatus, EngineSetStatus, LoraPoolStatus
from lorafleet_operator.core.conditions import Draft, Refusal, settle
from lorafleet_operator.core.manifests.engine import refuse_gpus, resolve_device
from lorafleet_operator.core.manifests.identity import selector_text
from lorafleet_operator.core.snapshot import Pool, PoolSnapshot, Replica

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


@dataclass(frozen=True, slots=True)
class _Tally:
    wanted: int
    ready: int
    current: int
    rolled_out: bool


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
    if spec.engine.dtype == "bfloat16" and resolve_device(spec.engine) == "cpu":
        return Refusal(
            Reason.INVALID,
            "engine.dtype bfloat16 needs a GPU, and engine.pod.resources.limits asks for none. "
            "Use dtype: float32, or ask for a GPU (nvidia.com/gpu)",
        )
    if gpus := refuse_gpus(spec.engine):
        return Refusal(Reason.INVALID, gpus)
    source = urlsplit(spec.base_model.source.uri)
    volumes = [volume.get("name") for volume in spec.engine.pod.volumes]
    if source.scheme == "pvc" and source.netloc not in volumes:
        return Refusal(
            Reason.INVALID,
            f"baseModel.source names volume {source.netloc!r}, which engine.pod.volumes does not have. Add it there",
        )
    return None


def judge_pool(snapshot: PoolSnapshot, refusal: Refusal | None, now: float) -> LoraPoolStatus | None:
    """The status to write, or None when the one that stands says the same."""
    pool, old = snapshot.pool, snapshot.pool.status
    wanted = pool.spec.replicas.min if pool.spec else 0
    tally = _count(snapshot, wanted)
    if refusal is None and snapshot.refusals:
        refusal = Refusal(Reason.INVALID, f"the API server refuses {'; '.join(snapshot.refusals)}. Correct engine.pod")
    drafts = _refused(refusal) if refusal else _observed(snapshot, tally)
    present = sum(not each.deleting for each in snapshot.replicas)
    new = LoraPoolStatus(
        observed_generation=pool.meta.generation,
        conditions=settle(drafts, old.conditions, pool.meta.generation, now),
        replicas=present,
        ready_replicas=tally.ready,
        selector=selector_text(pool.meta.name),
        sets=[EngineSetStatus(name=SHARED_SET, replicas=present, ready=tally.ready)],
        budget=_budget(snapshot.replicas) or old.budget,
    )
    return new if new != old else None


def _count(snapshot: PoolSnapshot, wanted: int) -> _Tally:
    usable = [each for each in snapshot.replicas if each.usable]
    workload = snapshot.workload
    rolled_out = workload is not None and workload.settled and workload.replicas == wanted
    return _Tally(wanted, len(usable), sum(each.current for each in usable), rolled_out)


def _refused(refusal: Refusal) -> list[Draft]:
    return [
        Draft(T.READY, False, refusal.reason, refusal.message),
        Draft(T.ACCEPTED, False, refusal.reason, refusal.message),
        Draft(T.DEGRADED, False, refusal.reason),
        Draft(T.RECONCILING, False, Reason.RECONCILED),
        Draft(T.STALLED, True, refusal.reason, refusal.message),
    ]


def _observed(snapshot: PoolSnapshot, tally: _Tally) -> list[Draft]:
    stuck = _find_stuck(snapshot.replicas)
    ready = tally.current > 0
    complete = tally.current >= tally.wanted and tally.rolled_out
    progress = stuck.message if stuck else f"{tally.ready} of {tally.wanted} replicas ready"
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
        if complete or stalled
        else Draft(T.RECONCILING, True, Reason.PROGRESSING, progress),
        Draft(T.STALLED, True, stuck.reason, stuck.message)
        if stalled and stuck
        else Draft(T.STALLED, False, Reason.RECONCILED),
    ]


def _degraded(pool: Pool, tally: _Tally, complete: bool, progress: str) -> Draft:
    if complete:
        return Draft(T.DEGRADED, False, Reason.FULLY_REDUNDANT)
    before = find_condition(pool.status.conditions, T.DEGRADED)
    # Redundancy can only be lost once it was there; before that, and in a rollout, the pool is on its way.
    had_it = before is not None and before.reason in (Reason.FULLY_REDUNDANT, Reason.REDUNDANCY_LOST)
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
        if not replica.deleting and not replica.usable and replica.waiting in STUCK:
            words = f": {replica.message}" if replica.message else ""
            return Refusal(Reason.NO_REPLICA_READY, f"replica {replica.name} is in {replica.waiting}{words}")
    return None


def _budget(replicas: Sequence[Replica]) -> BudgetStatus | None:
    """The smallest budget for adapters among the usable replicas: what is true of every one of them."""
    memories = [each.state.memory for each in replicas if each.usable and each.state and each.state.memory]
    if not memories:
        return None
    least = min(memories, key=lambda each: (each.adapters, each.kv_tokens))
    return BudgetStatus(
        weights=least.weights, activations=least.activations, adapters=least.adapters, kv_tokens=least.kv_tokens
    )
