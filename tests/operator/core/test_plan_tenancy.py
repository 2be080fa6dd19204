"""`spec.tenancy`: who asks for more than the pool leaves for the namespace is told so, and gets none of it."""

from typing import Any

from lorafleet_contracts.conditions import ConditionType, find_condition
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.snapshot import PoolSnapshot
from tests.support.fleet import NOW, SIZE, make_adapter, make_pool, make_replica, make_snapshot, make_tenant
from tests.support.plans import settle


def snapshot_of(*found: Any, **tenancy: Any) -> PoolSnapshot:
    """A pool of two replicas with these adapters and tenants."""
    adapters = tuple(each for each in found if each.meta.uid.startswith("uid-demo-a"))
    return make_snapshot(
        pool=make_pool(tenancy=tenancy, replicas={"min": 2}),
        adapters=adapters,
        tenants=tuple(each for each in found if each not in adapters),
        replicas=(make_replica(0), make_replica(1)),
    )


def settled(snapshot: PoolSnapshot) -> PoolSnapshot:
    """After all plans are carried out."""
    return settle(snapshot, NOW)[0]


def accepted(snapshot: PoolSnapshot) -> dict[str, str]:
    """Reason of Accepted by name."""
    found = {}
    for each in (*snapshot.adapters, *snapshot.tenants):
        condition = find_condition(each.status.conditions, ConditionType.ACCEPTED)
        assert condition is not None
        found[each.meta.name] = condition.reason
        assert (condition.status == "True") == (condition.reason == "Accepted")
    return found


def test_adapters_are_refused_before_anything_is_fetched_where_that_can_be_told() -> None:
    adapters = [make_adapter("a1", minReplicas=2), make_adapter("a2"), make_adapter("a3", priority=9)]
    snapshot = settled(snapshot_of(*adapters, maxMinReplicas=2, maxPriority=8))
    assert accepted(snapshot) == {"a1": "Accepted", "a2": "ExceedsPoolLimit", "a3": "ExceedsPoolLimit"}
    assert {each.uid for each in snapshot.memory.inspections} == {"uid-demo-a1"}
    message = next(each.message for each in snapshot.adapters[1].status.conditions if each.type == "Accepted")
    assert message == (
        "minReplicas of namespace demo would be 3 in sum, above tenancy.maxMinReplicas 2 of pool demo/smol. "
        "Ask for less, or its owner can raise spec.tenancy"
    )


def test_pinned_bytes_count_once_they_are_known_and_nothing_is_loaded_above() -> None:
    adapters = [make_adapter("a1", pinned=True), make_adapter("a2", pinned=True), make_adapter("a3")]
    snapshot = settled(snapshot_of(*adapters, maxPinnedBytes=str(SIZE + 1)))
    assert accepted(snapshot) == {"a1": "Accepted", "a2": "ExceedsPoolLimit", "a3": "Accepted"}
    held = {version.uid for each in snapshot.replicas if each.state for version in each.state.versions}
    assert held == {"uid-demo-a1", "uid-demo-a3"}


def test_tenants_are_refused_and_get_no_replicas_of_their_own() -> None:
    tenants = [
        make_tenant("t1", limits={"requestsPerSecond": 5}),
        make_tenant("t2", limits={"requestsPerSecond": 6}),
        make_tenant("t3", limits={"requestsPerSecond": 1}, isolation="Dedicated"),
    ]
    snapshot = settled(snapshot_of(*tenants, maxLimits={"requestsPerSecond": 10}, isolation=["Shared"]))
    assert accepted(snapshot) == {"t1": "Accepted", "t2": "ExceedsPoolLimit", "t3": "ExceedsPoolLimit"}
    assert not any(name.startswith("private-") for name in snapshot.workloads)


def test_raising_the_cap_is_enough() -> None:
    snapshot = settled(snapshot_of(make_adapter("a1", priority=9), maxPriority=8))
    raised = make_snapshot(pool=make_pool(tenancy={"maxPriority": 9}), adapters=snapshot.adapters)
    assert accepted(settled(raised)) == {"a1": "Accepted"}
    assert plan_pool(settled(raised), NOW).statuses == ()
