"""Replicas that leave: what only they hold moves first, one goes at a time, and nothing hangs for ever."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lorafleet_contracts.conditions import ConditionType, find_condition
from lorafleet_contracts.resources.pool import LoraPoolStatus
from lorafleet_operator.core.actions import Apply, Inspect, Load, Unload
from lorafleet_operator.core.drains import LEAVE_SECONDS, who_leaves
from lorafleet_operator.core.sets import EngineSet
from lorafleet_operator.core.snapshot import EngineDefaults, PoolSnapshot, Workload
from tests.support.controllers import StatefulSets
from tests.support.fleet import SIZE, make_adapter, make_replica, make_snapshot, make_state
from tests.support.plans import pick

NAMES = ("pirate", "poet", "chef", "judge")


def resize(world: StatefulSets, size: int) -> None:
    """The owner wants another size."""
    pool = world.snapshot.pool
    assert pool.spec is not None
    replicas = pool.spec.replicas.model_copy(update={"min": size})
    world.snapshot = replace(
        world.snapshot, pool=replace(pool, spec=pool.spec.model_copy(update={"replicas": replicas}))
    )


def roll(world: StatefulSets, image: str) -> None:
    """Another template."""
    world.snapshot = replace(world.snapshot, defaults=EngineDefaults(image))


def cordon(world: StatefulSets, *names: str) -> None:
    """`kubectl cordon` of the nodes of these replicas."""
    world.snapshot = replace(
        world.snapshot,
        replicas=tuple(replace(each, cordoned=each.name in names) for each in world.snapshot.replicas),
    )


def world_of(size: int, budget: int = 10 * SIZE, adapters: tuple[str, ...] = NAMES) -> StatefulSets:
    """A settled pool of that many replicas and these adapters, spread over them."""
    replicas = tuple(make_replica(number, make_state(budget=budget)) for number in range(size))
    world = StatefulSets(make_snapshot(replicas=replicas, adapters=tuple(make_adapter(each) for each in adapters)))
    world.run(12)
    assert not world.gone
    return world


def served(snapshot: PoolSnapshot) -> set[str]:
    """Adapters whose serving version answers somewhere."""
    usable = [each.state for each in snapshot.replicas if each.usable and each.state]
    resident = {version.key for state in usable for version in state.versions}
    return {each.meta.name for each in snapshot.adapters if f"{each.meta.uid}@{each.status.digest}" in resident}


def run_served(world: StatefulSets, steps: int, adapters: tuple[str, ...] = NAMES) -> None:
    """Step on; at every moment every adapter answers."""
    for _ in range(steps):
        world.step()
        assert served(world.snapshot) == set(adapters)


def running(world: StatefulSets, engines: str = "shared") -> list[str]:
    """Names of a set's replicas."""
    return sorted(each.name for each in world.snapshot.replicas if each.set == engines)


def test_a_smaller_size_moves_adapters_before_the_pods_go() -> None:
    world = world_of(3)
    resize(world, 1)
    run_served(world, 20)
    assert running(world) == ["smol-shared-0"]
    assert world.gone == [("smol-shared-2", ()), ("smol-shared-1", ())]


def test_a_larger_size_comes_at_once() -> None:
    world = world_of(1)
    resize(world, 3)
    world.step()
    assert len(running(world)) == 3
    assert not world.gone


def test_a_rollout_takes_one_emptied_replica_at_a_time_from_the_top() -> None:
    world = world_of(3)
    roll(world, "registry/engine:2")
    for _ in range(40):
        world.step()
        assert served(world.snapshot) == set(NAMES)
        assert sum(each.usable for each in world.snapshot.replicas) >= 2
    assert world.gone == [(f"smol-shared-{number}", ()) for number in (2, 1, 0)]
    assert all(each.current for each in world.snapshot.replicas)
    assert world.snapshot.workloads["shared"].partition == 3


def test_a_rollout_waits_for_a_replica_that_does_not_come_up() -> None:
    world = world_of(3)
    world.starting = 10_000
    roll(world, "registry/broken:1")
    run_served(world, 300)
    assert [name for name, _ in world.gone] == ["smol-shared-2"]
    world.starting = 2
    roll(world, "registry/engine:3")
    run_served(world, 40)
    assert all(each.current and each.usable for each in world.snapshot.replicas)


def test_a_pool_of_one_replica_rolls_without_waiting() -> None:
    world = world_of(1)
    roll(world, "registry/engine:2")
    world.run(3)
    assert [name for name, _ in world.gone] == ["smol-shared-0"]


def test_the_only_replica_that_serves_waits_for_the_others_but_not_for_ever() -> None:
    world = world_of(2)
    broken = [replace(each, ready=each.name != "smol-shared-0") for each in world.snapshot.replicas]
    world.snapshot = replace(world.snapshot, replicas=tuple(broken))
    world._age["smol-shared-0"] = -10_000
    roll(world, "registry/engine:2")
    run_served(world, int(LEAVE_SECONDS) - 1)
    assert not world.gone
    world.run(3)
    assert world.gone[0][0] == "smol-shared-1"


def test_a_leaving_replica_gets_nothing_new() -> None:
    world = world_of(2)
    cordon(world, "smol-shared-1")
    fresh = tuple(make_adapter(f"new{number}") for number in range(6))
    world.snapshot = replace(world.snapshot, adapters=(*world.snapshot.adapters, *fresh))
    loads = []
    for _ in range(6):
        plan = world.step()
        loads += [each.target.replica for each in pick(plan, Load)]
        assert all(each.replica == "smol-shared-0" for each in pick(plan, Inspect))
    assert set(loads) == {"smol-shared-0"}


def test_a_budget_lets_a_cordoned_replica_go_once_it_is_empty() -> None:
    world = world_of(2)
    assert world.budgets[-1] == 0, "an eviction right after the cordon must not win the race"
    cordon(world, "smol-shared-1")
    world.step()
    assert world.budgets[-1] == 0
    run_served(world, 2)
    assert world.budgets[-1] == 1
    world.end("smol-shared-1")
    assert world.gone == [("smol-shared-1", ())]
    world.run(10)
    assert served(world.snapshot) == set(NAMES)


def test_without_a_look_at_nodes_a_drain_waits_for_nothing() -> None:
    world = world_of(2)
    blind = tuple(replace(each, cordoned=None) for each in world.snapshot.replicas)
    world.snapshot = replace(world.snapshot, replicas=blind)
    world.step()
    assert world.budgets[-1] == 1


@pytest.mark.parametrize(
    ("size", "cordoned"), [(1, ("smol-shared-0",)), (2, ("smol-shared-0", "smol-shared-1"))], ids=["one", "all"]
)
def test_a_drain_with_nowhere_to_move_to_does_not_hang(size: int, cordoned: tuple[str, ...]) -> None:
    world = world_of(size)
    cordon(world, *cordoned)
    world.run(2)
    assert world.budgets[-1] == 1


def test_of_two_on_a_drained_node_the_second_goes_when_the_first_is_back_and_has_its_adapters() -> None:
    """A drain asks at any moment: also right when the first serves again, before anybody has planned what it gets."""
    world = world_of(2)
    cordon(world, "smol-shared-0", "smol-shared-1")
    world.run(2)
    world.end("smol-shared-0")
    world.step()
    while world.budgets[-1] == 0:
        world.step()
    world.end("smol-shared-1")
    assert world.gone[-1] == ("smol-shared-1", ())


def test_a_move_that_does_not_succeed_holds_a_drain_up_for_a_while_only_and_that_is_told() -> None:
    world = world_of(2)
    cordon(world, "smol-shared-1")
    before = world.snapshot
    plan = world.step()
    assert pick(plan, Load)
    for _ in range(int(LEAVE_SECONDS) - 1):
        world.snapshot = replace(world.snapshot, replicas=before.replicas)  # loads come to nothing
        world.snapshot = replace(world.snapshot, memory=replace(world.snapshot.memory, loads={}))
        world.step()
        assert world.budgets[-1] == 0
    world.snapshot = replace(world.snapshot, replicas=before.replicas)
    plan = world.step()
    assert world.budgets[-1] == 1
    [status] = [each.status for each in plan.statuses if isinstance(each.status, LoraPoolStatus)]
    message = find_condition(status.conditions, ConditionType.RECONCILING)
    assert message is not None
    assert "smol-shared-1 must go" in message.message
    [warning] = plan.warnings
    assert (warning.reason, warning.about.kind) == ("DrainedLate", "LoraPool")
    assert "smol-shared-1 must go" in warning.message


def test_a_set_that_ends_is_emptied_first() -> None:
    """As after a class was merged back: its adapters belong on the shared set again."""
    world = world_of(1)
    uid = world.snapshot.adapters[0].meta.uid
    [version] = [each for each in world.snapshot.replicas[0].state.versions if each.uid == uid]  # type: ignore[union-attr]
    others = [each for each in world.snapshot.replicas[0].state.versions if each.uid != uid]  # type: ignore[union-attr]
    split = make_replica(0, make_state(version), set="class-64", name="smol-class-64-0")
    world.snapshot = replace(
        world.snapshot,
        replicas=(make_replica(0, make_state(*others)), split),
        workloads={**world.snapshot.workloads, "class-64": Workload(1, settled=True, partition=1)},
        memory=replace(world.snapshot.memory, loads={}),
    )
    run_served(world, 10)
    assert world.gone == [("smol-class-64-0", ())]
    assert "class-64" not in world.snapshot.workloads


def test_who_leaves_is_unknown_while_the_controller_has_not_seen_the_newest_spec() -> None:
    old = tuple(make_replica(number, current=False) for number in range(2))
    sets = (EngineSet("shared", "Shared", 2),)
    seen = make_snapshot(replicas=old, workloads={"shared": Workload(2, settled=False, rolled_out=False, partition=2)})
    assert who_leaves(seen, sets) == {"smol-shared-1"}
    unseen = {"shared": Workload(2, settled=False, observed=False, partition=2)}
    assert who_leaves(replace(seen, workloads=unseen), sets) == frozenset()


def test_a_new_template_goes_nowhere_by_itself() -> None:
    world = world_of(2)
    roll(world, "registry/engine:2")
    [apply] = pick(world.step(), Apply)
    assert apply.manifest["spec"]["updateStrategy"]["rollingUpdate"]["partition"] == 2


def test_a_template_that_changes_during_a_rollout_takes_no_replica_that_was_not_emptied_for_it() -> None:
    world = world_of(3)
    roll(world, "registry/engine:2")
    run_served(world, 6)
    roll(world, "registry/engine:1")
    run_served(world, 45)
    assert all(each.current and each.usable for each in world.snapshot.replicas)


# Without shrinking: a world of a hundred plans is not made smaller within a sensible time.
@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    st.integers(1, 4),
    st.lists(
        st.one_of(
            st.tuples(st.just("size"), st.integers(1, 4)),
            st.tuples(st.just("image"), st.integers(1, 3)),
            st.tuples(st.just("cordon"), st.integers(0, 3)),
            st.tuples(st.just("wait"), st.integers(1, 12)),
        ),
        max_size=4,
    ),
)
def test_law_whatever_its_owner_does_no_adapter_goes_out_of_reach(size: int, deeds: list[tuple[str, int]]) -> None:
    """As long as two replicas are left to move between; and the pool comes to rest as it should be."""
    world = world_of(max(size, 2))
    for deed, number in deeds:
        match deed:
            case "size":
                resize(world, max(number, 2))
            case "image":
                roll(world, f"registry/engine:{number}")
            case "cordon":
                cordon(world, f"smol-shared-{number}")
            case _:
                run_served(world, number)
        run_served(world, 1)
    run_served(world, 45)
    spec = world.snapshot.pool.spec
    assert spec is not None
    assert len(running(world)) == spec.replicas.min
    assert all(each.current and each.usable for each in world.snapshot.replicas)
    assert not [each for each in world.step().actions if not isinstance(each, Unload)]
