"""Lets plans act on sets of replicas too: what a StatefulSet controller and perfect engines would make of them.

Used by tests/operator/core. `check_routes` is what every plan must leave true for those who route by the statuses.
"""

from dataclasses import replace

from lorafleet_contracts.admin import MergedState, ParityState, VersionPhase
from lorafleet_contracts.conditions import ConditionType
from lorafleet_contracts.names import LABEL_SET, SHARED_SET, is_dedicated, split_version_key, version_key
from lorafleet_operator.core.actions import Apply, Plan
from lorafleet_operator.core.conditions import is_true
from lorafleet_operator.core.dedication import routed_set
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.popularity import Pace, Rates, Track
from lorafleet_operator.core.snapshot import PoolSnapshot, Replica, Workload
from tests.support.fleet import carry_out, make_state

PARITY = ParityState(merged=1.2e-3, unmerged=1e-3, same_argmax=0.99, positions=160)


def act(snapshot: PoolSnapshot, plan: Plan, now: float, parity: ParityState = PARITY) -> PoolSnapshot:
    """The snapshot after the plan, with new replicas at once ready, and merged ones with this parity."""
    after = carry_out(snapshot, plan, now)
    workloads, replicas = dict(after.workloads), {each.name: each for each in _counting_on(snapshot, after)}
    for action in plan.actions:
        if isinstance(action, Apply) and action.key.startswith("StatefulSet/"):
            name, spec = action.manifest["metadata"]["labels"][LABEL_SET], action.manifest["spec"]
            workloads[name] = Workload(spec["replicas"], settled=True)
            env = {each["name"]: each["value"] for each in spec["template"]["spec"]["containers"][0]["env"]}
            for number in range(spec["replicas"]):
                pod = f"{action.manifest['metadata']['name']}-{number}"
                replicas.setdefault(pod, _replica(pod, name, env.get("LORAFLEET_MERGE_VERSION"), parity))
    kept = tuple(
        each
        for each in replicas.values()
        if each.set in workloads and int(each.name.rpartition("-")[2]) < workloads[each.set].replicas
    )
    return replace(after, workloads=workloads, replicas=kept)


def _counting_on(before: PoolSnapshot, after: PoolSnapshot) -> list[Replica]:
    """The replicas with what they had counted of their steps."""
    steps = {each.name: each.state.steps for each in before.replicas if each.state}
    return [
        replace(each, state=each.state.model_copy(update={"steps": steps[each.name]})) if each.state else each
        for each in after.replicas
    ]


def _replica(pod: str, name: str, merged: str | None, parity: ParityState) -> Replica:
    uid, digest = split_version_key(merged) if merged else ("", "")
    state = make_state(merged=MergedState(uid=uid, digest=digest, parity=parity) if merged else None)
    return Replica(name=pod, ready=True, deleting=False, current=True, state=state, set=name)


def under_load(snapshot: PoolSnapshot, **tenants: dict[str, float]) -> PoolSnapshot:
    """The snapshot with requests per second by tenant of namespace demo and adapter's name."""
    by_tenant = {
        f"demo/{tenant}": {f"uid-demo-{name}": _rates(rate) for name, rate in found.items()}
        for tenant, found in tenants.items()
    }
    adapters: dict[str, float] = {}
    for found in tenants.values():
        for name, rate in found.items():
            adapters[f"uid-demo-{name}"] = adapters.get(f"uid-demo-{name}", 0.0) + rate
    return replace(
        snapshot,
        load=Track(
            adapters={uid: _rates(rate) for uid, rate in adapters.items()},
            tenants=by_tenant,
            total=_rates(sum(adapters.values())),
        ),
    )


def promotion_of(snapshot: PoolSnapshot) -> tuple[str, str, str | None]:
    """Stage, reason and set of the first tenant's promotion."""
    found = snapshot.tenants[0].status.promotion
    assert found is not None
    return found.stage, found.reason, found.set


def key_of(snapshot: PoolSnapshot, name: str = "pirate") -> str:
    """The version that serves of an adapter, as `uid@digest`."""
    [adapter] = [each for each in snapshot.adapters if each.meta.name == name]
    assert adapter.status.digest is not None
    return version_key(adapter.meta.uid, adapter.status.digest)


def _rates(rate: float) -> Rates:
    return Rates(Pace(rate, rate), Pace(rate * 100, rate * 100))


def where(snapshot: PoolSnapshot, version: str) -> set[str]:
    """The sets with a usable replica that answers a version."""
    return {
        each.set
        for each in snapshot.replicas
        if each.usable
        and each.state
        and (
            any(held.key == version and held.phase == VersionPhase.RESIDENT for held in each.state.versions)
            or (each.state.merged and version_key(each.state.merged.uid, each.state.merged.digest) == version)
        )
    }


def check_routes(snapshot: PoolSnapshot) -> None:
    """Every version that a status names is answered at home and Ready unless a new one comes, and a tenant's own set is
    there while routed to."""
    for adapter in snapshot.adapters:
        if adapter.status.digest is not None:
            home = adapter.status.set or SHARED_SET
            assert home in where(snapshot, version_key(adapter.meta.uid, adapter.status.digest)), adapter.meta.name
            settled = adapter.status.verified_generation == adapter.meta.generation
            assert not settled or is_true(adapter.status.conditions, ConditionType.READY), adapter.meta.name
    for tenant in snapshot.tenants:
        name = routed_set(tenant.status.promotion)
        assert name is None or name in snapshot.workloads


def run(snapshot: PoolSnapshot, start: float, seconds: float, step: float = 1.0) -> tuple[PoolSnapshot, list[str]]:
    """Plan and act for a while; returns the end and, in order, what tenants' promotions and adapters' homes became."""
    seen: list[str] = []
    now = start
    while now <= start + seconds:
        plan = plan_pool(snapshot, now)
        # Gateways read statuses before any engine has done what the plan asks for.
        check_routes(carry_out(snapshot, Plan(statuses=plan.statuses), now))
        snapshot = act(snapshot, plan, now)
        check_routes(snapshot)
        own = [name for name in snapshot.workloads if is_dedicated(name)]
        assert len(own) <= sum(each.status.promotion is not None for each in snapshot.tenants)
        for line in _lines(snapshot):
            if line not in seen[-8:]:
                seen.append(line)
        now += step
    return snapshot, seen


def _lines(snapshot: PoolSnapshot) -> list[str]:
    lines = [
        f"{each.meta.name}: {each.status.promotion.stage} {each.status.promotion.reason}"
        for each in snapshot.tenants
        if each.status.promotion
    ]
    return lines + [f"{each.meta.name} on {each.status.set or SHARED_SET}" for each in snapshot.adapters]
