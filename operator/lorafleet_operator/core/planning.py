"""Composition only: one snapshot in, one plan out. The pool's task, the orphan task and the planner CLI call it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.names import SHARED_SET, is_dedicated, version_key
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolSpec, LoraPoolStatus
from lorafleet_operator.core.actions import Action, Inspect, Plan, StatusWrite, Warn
from lorafleet_operator.core.adapters import Observed, judge_adapter, judge_orphan_adapter, news_of_warnings
from lorafleet_operator.core.announcing import news_of, tell_classes, tell_promotion
from lorafleet_operator.core.assessment import Case, assess
from lorafleet_operator.core.budgets import news_of_difference
from lorafleet_operator.core.conditions import Refusal
from lorafleet_operator.core.drains import let_go, who_leaves
from lorafleet_operator.core.fleet import Fleet, decide_fleet
from lorafleet_operator.core.homes import Layouts, lay_out_sets
from lorafleet_operator.core.objects import deletes, due_applies
from lorafleet_operator.core.ownsets import answered_apart
from lorafleet_operator.core.pools import judge_pool, refuse_pool, tell_late
from lorafleet_operator.core.popularity import without
from lorafleet_operator.core.snapshot import Meta, OrphanSnapshot, PoolSnapshot, Replica
from lorafleet_operator.core.story import tell_story
from lorafleet_operator.core.telling import shown_popularity, tell_popularity
from lorafleet_operator.core.tenants import (
    index_adapters,
    judge_orphan_tenant,
    judge_tenant,
    next_expiry,
    refuse_excessive_tenants,
)
from lorafleet_operator.core.view import View, look
from lorafleet_operator.core.wishes import rules_of

ADAPTER_WRITES = 500
"""Statuses of adapters in one plan: a few seconds' worth. The rest comes with the next plans, if it still is true."""


def plan_pool(snapshot: PoolSnapshot, now: float) -> Plan:
    """Everything that is due for one pool at epoch second `now`; the same snapshot always gives the same plan.

    A pool that is being deleted gets an empty plan: its objects go with it.
    """
    pool = snapshot.pool
    if pool.meta.deleting:
        return Plan()
    refusal = refuse_pool(pool, snapshot.cluster_wide)
    if pool.spec is None:
        return Plan(statuses=tuple(_pool_writes(snapshot, refusal, Fleet((), classes=pool.status.rank_classes), now)))
    cases = assess(snapshot, pool.spec)
    view = look(snapshot, now)
    here = replace(snapshot, load=without(snapshot.load, answered_apart(snapshot)))
    fleet = decide_fleet(here, pool.spec, cases, view)
    view = replace(view, leaving=who_leaves(snapshot, fleet.sets))
    layouts = lay_out_sets(cases, view, fleet, rules_of(pool.spec, here, snapshot.load))
    placed = {name: each.placed for name, each in layouts.by_set.items()}
    # A set that an isolated tenant alone is sent to holds nothing for others.
    homes = {case.home for case in cases if case.serving is not None and case.home != case.dedicated}
    departures = let_go(snapshot, fleet.sets, view, placed, homes)
    objects: list[Action] = []
    if refusal is None:
        objects = [*due_applies(snapshot, pool.spec, departures.sets), *deletes(snapshot, departures.ended)]
    inspections, inspect_due = _inspections(cases, view)
    adapter_writes = _adapter_writes(cases, snapshot, (fleet, layouts), view)
    pool_writes = _pool_writes(snapshot, refusal, fleet, now, departures.late)
    other_writes = [*pool_writes, *_tenant_writes(snapshot, pool.spec, fleet, now)]
    news = news_of(other_writes, pool, snapshot.tenants)
    writes = [*other_writes, *adapter_writes]
    told, tell_due = tell_popularity(snapshot, {each.uid for each in adapter_writes}, now)
    dues = (layouts.due, fleet.due, departures.due, inspect_due, tell_due, next_expiry(snapshot.tenants, now))
    moments = [each for each in dues if each is not None]
    return Plan(
        actions=(*objects, *inspections, *layouts.actions),
        statuses=(*writes, *told),
        warnings=(
            *tell_story(writes, snapshot),
            *_pool_warnings(snapshot, pool_writes),
            *news,
            *_late_warnings(pool_writes, pool.meta, departures.late),
            *_warnings(cases, adapter_writes),
        ),
        surplus=layouts.surplus,
        leaving=view.leaving,
        moves=layouts.moves,
        tells_popularity=bool(told),
        needs={name: each.need for name, each in fleet.sizes.items()},
        again_in=max(min(moments) - now, 0.0) if moments else None,
    )


def plan_orphans(snapshot: OrphanSnapshot, now: float) -> Plan:
    """Verdicts for adapters and tenants whose pool does not exist; there is nothing to do for them."""
    writes = []
    for adapter in snapshot.adapters:
        meta, status = adapter.meta, judge_orphan_adapter(adapter, now)
        if status and not meta.deleting:
            writes.append(_write(meta, status))
    for tenant in snapshot.tenants:
        meta, verdict = tenant.meta, judge_orphan_tenant(tenant, now)
        if verdict and not meta.deleting:
            writes.append(StatusWrite("Tenant", meta.namespace, meta.name, meta.uid, verdict))
    return Plan(statuses=tuple(writes))


def _pool_writes(
    snapshot: PoolSnapshot, refusal: Refusal | None, fleet: Fleet, now: float, late: Sequence[str] = ()
) -> list[StatusWrite]:
    meta, judged = snapshot.pool.meta, judge_pool(snapshot, refusal, fleet.sets, now, late)
    verdict = tell_classes(snapshot.pool, judged, fleet)
    return [StatusWrite("LoraPool", meta.namespace, meta.name, meta.uid, verdict)] if verdict else []


def _inspections(cases: Sequence[Case], view: View) -> tuple[list[Inspect], float | None]:
    """Inspections that are due, each on the replica with the fewest running (then the fewest bytes).

    One that gives no answers, or where the last try failed, gets them only where there is no other. Files of isolated
    tenants come on no others' replicas.
    """
    attempts = view.memory.inspections
    busy = Counter(each.replica for each in attempts.values() if each.pending)
    used = {name: _bytes_used(replica) for name, replica in view.usable.items()}
    common = [name for name, replica in view.usable.items() if not is_dedicated(replica.set)]
    inspections: list[Inspect] = []
    moments: list[float] = []
    for case in sorted(cases, key=lambda each: (each.adapter.meta.created, each.adapter.meta.uid)):
        due, spec = case.verification.due, case.adapter.spec
        own = case.dedicated
        able = common if own is None else [name for name, each in view.usable.items() if each.set == own]
        if due is None or spec is None or case.denial or case.suspended or not able:
            continue
        if due > view.now:
            moments.append(due)
            continue
        last = attempts.get(case.inspection)
        shunned = view.silent | view.leaving | {last.replica if last else ""}
        replica = min(able, key=lambda name: (name in shunned, busy[name], used[name], name))
        busy[replica] += 1
        inspections.append(Inspect(case.inspection, replica, case.fetch, spec.source.digest))
    return inspections, min(moments, default=None)


def _bytes_used(replica: Replica) -> int:
    return replica.state.memory.adapters_used if replica.state and replica.state.memory else 0


def _adapter_writes(
    cases: Sequence[Case], snapshot: PoolSnapshot, where: tuple[Fleet, Layouts], view: View
) -> list[StatusWrite]:
    """Verdicts before words of progress, which those may make needless; no more than can be written soon."""
    spec = snapshot.pool.spec
    quantised = spec is not None and spec.engine.quantization != "None"
    ceilings = tuple(spec.rank_classes.ceilings) if spec else ()
    fleet, layouts = where
    ground = _Ground(
        {name: view.of(name) for name in {SHARED_SET, *fleet.aims.values(), *(c.home for c in cases)}},
        fleet,
        layouts,
        ceilings,
        quantised,
    )
    shown = {case.adapter.meta.uid: shown_popularity(case.adapter, snapshot) for case in cases}
    seen = ((case, _observe(case, ground)) for case in cases)
    judged = (judge_adapter(case, replace(each, popularity=shown[case.adapter.meta.uid])) for case, each in seen)
    verdicts = sorted((each for each in judged if each is not None), key=lambda each: each.progress)
    return [_write(each.case.adapter.meta, each.compose(view.now)) for each in verdicts[:ADAPTER_WRITES]]


def _write(meta: Meta, status: LoraAdapterStatus) -> StatusWrite:
    return StatusWrite("LoraAdapter", meta.namespace, meta.name, meta.uid, status)


def _pool_warnings(snapshot: PoolSnapshot, writes: Sequence[StatusWrite]) -> list[Warn]:
    meta, warnings = snapshot.pool.meta, []
    for write in writes:
        if not isinstance(write.status, LoraPoolStatus):
            continue
        if message := news_of_difference(write.status, snapshot.pool.status):
            name = f"{meta.name}.{meta.uid}.{meta.generation}.budget"
            warnings.append(Warn(name, write, meta.generation, Reason.BUDGET_DIFFERS.value, message))
    return warnings


def _warnings(cases: Sequence[Case], writes: Sequence[StatusWrite]) -> tuple[Warn, ...]:
    adapters = {case.adapter.meta.uid: case.adapter for case in cases}
    warnings = []
    for write in writes:
        adapter = adapters[write.uid]
        message = news_of_warnings(adapter, write.status) if isinstance(write.status, LoraAdapterStatus) else None
        if message is not None:
            meta = adapter.meta
            name = f"{meta.name}.{meta.uid}.{meta.generation}"
            warnings.append(Warn(name, write, meta.generation, Reason.VERIFIED_WITH_WARNINGS.value, message))
    return tuple(warnings)


def _late_warnings(writes: Sequence[StatusWrite], pool: Meta, late: Sequence[str]) -> list[Warn]:
    """One for each generation of a pool that makes a replica go too early."""
    name = f"{pool.name}.{pool.uid}.{pool.generation}.late"
    about = (each for each in writes if each.kind == "LoraPool")
    return [Warn(name, each, pool.generation, "DrainedLate", tell_late(late)) for each in about if late]


@dataclass(frozen=True, slots=True)
class _Ground:
    """What adapters are observed on: a view of each set by name, and what was decided."""

    views: Mapping[str, View]
    fleet: Fleet
    layouts: Layouts
    ceilings: tuple[int, ...]
    quantised: bool


def _observe(case: Case, ground: _Ground) -> Observed:
    uid, target, aim = case.adapter.meta.uid, case.target, ground.fleet.aim(case)
    home, view = ground.views[case.home], ground.views[aim]
    serving = case.serving is not None and bool(home.resident.get(version_key(uid, case.serving)))
    if target is None:
        return Observed(None, frozenset(), serving, {}, len(view.usable), aim, ground.ceilings)
    key, layout = version_key(uid, target), ground.layouts.by_set.get(aim)
    return Observed(
        layout.placed.get(key) if layout else None,
        frozenset(view.resident.get(key, ())),
        serving,
        view.failing.get(key, {}),
        len(view.usable),
        aim,
        ground.ceilings,
        quantised=ground.quantised,
        quality=view.quality.get(key),
    )


def _tenant_writes(snapshot: PoolSnapshot, spec: LoraPoolSpec, fleet: Fleet, now: float) -> list[StatusWrite]:
    index = index_adapters([each for each in snapshot.adapters if not each.meta.deleting])
    excess, writes = refuse_excessive_tenants(snapshot, spec), []
    for tenant in snapshot.tenants:
        meta = tenant.meta
        if meta.deleting:
            continue
        judged = judge_tenant(
            tenant, (snapshot.pool.meta, spec), index, snapshot.namespaces, now, excess=excess.get(meta.uid)
        )
        if status := tell_promotion(tenant, judged, fleet):
            writes.append(StatusWrite("Tenant", meta.namespace, meta.name, meta.uid, status))
    return writes
