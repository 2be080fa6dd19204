"""Laws that hold for all plans."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_contracts.admin import Tier
from lorafleet_operator.core.actions import Load, Plan
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.snapshot import (
    Adapter,
    PoolSnapshot,
)
from tests.support.fleet import (
    NOW,
    carry_out,
    make_adapter,
    make_replica,
    make_snapshot,
    make_state,
)
from tests.support.plans import pick

adapter_sizes = st.lists(st.integers(min_value=1, max_value=4000), max_size=12)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[PoolSnapshot, dict[str, int]]:
    """A pool with up to three replicas of different budgets and up to twelve adapters of different sizes."""
    sizes = draw(adapter_sizes)
    budgets = draw(st.lists(st.integers(min_value=0, max_value=9000), min_size=0, max_size=3))
    adapters: list[Adapter] = []
    for index, _ in enumerate(sizes):
        counts = draw(st.integers(min_value=1, max_value=3))
        age = f"2026-11-30T00:00:{draw(st.integers(0, 59)):02d}Z"
        adapters.append(make_adapter(f"a{index}", meta={"created": age}, minReplicas=counts))
    replicas = tuple(make_replica(index, make_state(budget=budget)) for index, budget in enumerate(budgets))
    by_uid = {each.meta.uid: size for each, size in zip(adapters, sizes, strict=True)}
    return make_snapshot(adapters=tuple(adapters), replicas=replicas), by_uid


@settings(max_examples=60, deadline=None)
@given(fleets())
def test_budgets_hold_and_carried_out_plans_come_to_an_end(fleet: tuple[PoolSnapshot, dict[str, int]]) -> None:
    snapshot, sizes = fleet
    for moment in range(30):  # an hour has 60 moves
        now = NOW + 60 * moment
        plan = plan_pool(snapshot, now)
        assert plan == plan_pool(snapshot, now)
        snapshot = carry_out(snapshot, plan, now, sizes)
        for replica in snapshot.replicas:
            assert replica.state is not None
            assert replica.state.memory is not None
            sure = sum(each.bytes for each in replica.state.versions if each.wanted is Tier.GPU)
            assert sure <= replica.state.memory.adapters
    assert plan_pool(snapshot, NOW + 3600) == Plan()


@settings(max_examples=60, deadline=None)
@given(fleets(), st.randoms(use_true_random=False))
def test_the_order_of_the_snapshot_does_not_matter(fleet: tuple[PoolSnapshot, dict[str, int]], random: object) -> None:
    snapshot, sizes = fleet
    snapshot = carry_out(snapshot, plan_pool(snapshot, NOW), NOW, sizes)
    adapters, replicas = list(snapshot.adapters), list(snapshot.replicas)
    random.shuffle(adapters)  # type: ignore[attr-defined]
    random.shuffle(replicas)  # type: ignore[attr-defined]
    shuffled = replace(snapshot, adapters=tuple(adapters), replicas=tuple(replicas))
    assert set(pick(plan_pool(shuffled, NOW), Load)) == set(pick(plan_pool(snapshot, NOW), Load))
