"""Whole plans: from nothing to Ready, updates, losses, removals, and the laws that hold for all of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_contracts.admin import Problem, ProblemCode, VersionPhase
from lorafleet_contracts.conditions import ConditionType, find_condition
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_operator.core.actions import Apply, Inspect, Load, Plan, StatusWrite, Unload
from lorafleet_operator.core.planning import plan_orphans, plan_pool
from lorafleet_operator.core.residency import GRACE_SECONDS
from lorafleet_operator.core.snapshot import (
    Adapter,
    Attempt,
    EngineDefaults,
    InspectionKey,
    Memory,
    Neighbours,
    OrphanSnapshot,
    PoolSnapshot,
    VersionOn,
)
from tests.support.fleet import (
    NOW,
    PREFIX,
    SIZE,
    carry_out,
    digest_of,
    make_adapter,
    make_pool,
    make_replica,
    make_snapshot,
    make_state,
    make_tenant,
    make_version,
    report_for,
)

LATER = NOW + GRACE_SECONDS + 1


def pick(plan: Plan, kind: type) -> list:
    """The plan's actions of one kind."""
    return [each for each in plan.actions if isinstance(each, kind)]


def status_of(plan: Plan, name: str) -> LoraAdapterStatus:
    """The status that the plan writes to one adapter."""
    found = [each.status for each in plan.statuses if each.name == name and each.kind == "LoraAdapter"]
    assert len(found) == 1
    assert isinstance(found[0], LoraAdapterStatus)
    return found[0]


def word(status: LoraAdapterStatus, kind: ConditionType) -> tuple[str, str]:
    """(status, reason) of a condition."""
    condition = find_condition(status.conditions, kind)
    assert condition is not None
    return condition.status, condition.reason


def settle(snapshot: PoolSnapshot, now: float = NOW, rounds: int = 8) -> tuple[PoolSnapshot, list[StatusWrite]]:
    """Plan and carry out until a plan is empty; returns the end and all status writes on the way."""
    writes: list[StatusWrite] = []
    for _ in range(rounds):
        plan = plan_pool(snapshot, now)
        if not plan.actions and not plan.statuses:
            return snapshot, writes
        writes += plan.statuses
        snapshot = carry_out(snapshot, plan, now)
    raise AssertionError("the plans do not come to an end")


def ready_snapshot(**changes: object) -> PoolSnapshot:
    """A settled pool with adapter `pirate`."""
    return settle(make_snapshot(**{"adapters": (make_adapter("pirate"),), **changes}))[0]


def change_adapter(snapshot: PoolSnapshot, **spec: object) -> PoolSnapshot:
    """The owner edits the spec of the only adapter."""
    [adapter] = snapshot.adapters
    fresh = make_adapter(adapter.meta.name, meta={"generation": adapter.meta.generation + 1}, **spec)
    return replace(snapshot, adapters=(replace(fresh, status=adapter.status),))


def test_a_new_pool_gets_its_objects_with_the_secret_first() -> None:
    plan = plan_pool(make_snapshot(replicas=(), workload=None), NOW)
    assert [each.key for each in pick(plan, Apply)] == [
        "Secret/smol-tokens",
        "Service/smol-shared",
        "PodDisruptionBudget/smol-shared",
        "StatefulSet/smol-shared",
    ]


def test_the_network_policy_stands_before_the_first_engine() -> None:
    defaults = EngineDefaults("registry/engine:1", neighbours=Neighbours("fleet", "main"))
    plan = plan_pool(make_snapshot(replicas=(), workload=None, defaults=defaults), NOW)
    keys = [each.key for each in pick(plan, Apply)]
    assert keys.index("NetworkPolicy/smol-shared") < keys.index("StatefulSet/smol-shared")


def test_what_is_applied_already_is_not_applied_again() -> None:
    snapshot = make_snapshot()
    assert not pick(plan_pool(carry_out(snapshot, plan_pool(snapshot, NOW)), NOW), Apply)


def test_an_adapter_is_inspected_then_loaded_then_ready_with_two_writes() -> None:
    snapshot = make_snapshot(adapters=(make_adapter("pirate"),))
    first = plan_pool(snapshot, NOW)
    assert [each.uri for each in pick(first, Inspect)] == [f"{PREFIX}pirate"]
    assert word(status_of(first, "pirate"), ConditionType.READY) == ("False", "Inspecting")
    second = plan_pool(carry_out(snapshot, first), NOW)
    [load] = pick(second, Load)
    assert load.target == VersionOn("smol-shared-0", "boot-1", "uid-demo-pirate", digest_of(f"{PREFIX}pirate"))
    end, writes = settle(snapshot)
    assert [each.kind for each in writes].count("LoraAdapter") == 2
    status = end.adapters[0].status
    assert word(status, ConditionType.READY) == ("True", "Ready")
    assert status.digest == status.verified_digest == load.target.digest
    assert (status.rank, status.bytes, status.verified_generation) == (8, SIZE, 1)
    assert [(each.replica, each.reason) for each in status.placements] == [("smol-shared-0", "LeastLoaded")]


def test_without_a_replica_the_adapter_waits_and_says_so() -> None:
    plan = plan_pool(make_snapshot(replicas=(), adapters=(make_adapter("pirate"),)), NOW)
    assert word(status_of(plan, "pirate"), ConditionType.VERIFIED) == ("Unknown", "AwaitingReplica")
    assert not pick(plan, Inspect)


def test_inspections_spread_over_replicas() -> None:
    adapters = tuple(make_adapter(f"a{index}") for index in range(4))
    plan = plan_pool(make_snapshot(adapters=adapters, replicas=(make_replica(0), make_replica(1))), NOW)
    assert sorted(each.replica for each in pick(plan, Inspect)) == ["smol-shared-0"] * 2 + ["smol-shared-1"] * 2


def test_a_restarted_operator_asks_nothing_and_writes_nothing() -> None:
    snapshot = ready_snapshot()
    plan = plan_pool(replace(snapshot, memory=Memory()), NOW)
    assert plan == Plan()


def test_a_restarted_engine_gets_its_adapters_back() -> None:
    snapshot = ready_snapshot()
    reborn = replace(snapshot, replicas=(make_replica(0, make_state(boot_id="boot-2")),))
    plan = plan_pool(reborn, NOW + 60)
    [load] = pick(plan, Load)
    assert load.target.boot_id == "boot-2"
    status = status_of(plan, "pirate")
    assert word(status, ConditionType.READY) == ("False", "Loading")
    assert word(status, ConditionType.AVAILABLE) == ("False", "NotServing")
    assert status.digest == load.target.digest
    end, writes = settle(reborn, NOW + 60)
    assert word(end.adapters[0].status, ConditionType.READY) == ("True", "Ready")
    assert [each.kind for each in writes].count("LoraAdapter") == 2


def test_a_lost_replica_moves_its_adapters_to_another() -> None:
    snapshot = ready_snapshot(replicas=(make_replica(0), make_replica(1)))
    lost = replace(snapshot, replicas=(replace(snapshot.replicas[0], ready=False), snapshot.replicas[1]))
    assert [each.target.replica for each in pick(plan_pool(lost, NOW), Load)] == ["smol-shared-1"]


def test_what_is_placed_is_not_moved_to_an_emptier_replica() -> None:
    snapshot = ready_snapshot()
    grown = replace(snapshot, replicas=(*snapshot.replicas, make_replica(1)))
    assert not pick(plan_pool(grown, NOW), Load)


def test_a_new_version_loads_beside_the_old_and_the_old_goes_after_the_flip() -> None:
    snapshot = ready_snapshot()
    old = digest_of(f"{PREFIX}pirate")
    new = digest_of(f"{PREFIX}pirate-2")
    snapshot = change_adapter(snapshot, source={"uri": f"{PREFIX}pirate-2"})
    first = plan_pool(snapshot, NOW)
    assert word(status_of(first, "pirate"), ConditionType.READY) == ("False", "Inspecting")
    assert word(status_of(first, "pirate"), ConditionType.AVAILABLE) == ("True", "OldVersionServes")
    assert status_of(first, "pirate").digest == old
    snapshot = carry_out(snapshot, first)
    second = plan_pool(snapshot, NOW)
    assert [each.target.digest for each in pick(second, Load)] == [new]
    assert not pick(second, Unload)
    snapshot = carry_out(snapshot, second)
    flip = plan_pool(snapshot, NOW)
    assert status_of(flip, "pirate").digest == new
    assert not pick(flip, Unload)
    snapshot = carry_out(snapshot, flip)
    waiting = plan_pool(snapshot, NOW)
    assert waiting.again_in == pytest.approx(GRACE_SECONDS)
    assert not waiting.actions
    snapshot = carry_out(snapshot, waiting)
    assert [each.target.digest for each in pick(plan_pool(snapshot, LATER), Unload)] == [old]


def test_a_bad_new_version_leaves_the_old_one_serving() -> None:
    snapshot = change_adapter(ready_snapshot(), source={"uri": f"{PREFIX}broken"})
    problem = Problem(title="unsupported", status=422, code=ProblemCode.UNSUPPORTED_ADAPTER, reasons=["DoRA"])
    key = InspectionKey("uid-demo-pirate", 2)
    snapshot = replace(snapshot, memory=Memory(inspections={key: Attempt(False, NOW, 1, problem)}))
    plan = plan_pool(snapshot, LATER)
    status = status_of(plan, "pirate")
    assert word(status, ConditionType.STALLED) == ("True", "UnsupportedAdapter")
    assert word(status, ConditionType.READY) == ("False", "UnsupportedAdapter")
    assert word(status, ConditionType.AVAILABLE) == ("True", "OldVersionServes")
    assert status.digest == digest_of(f"{PREFIX}pirate")
    assert not plan.actions


def test_a_serving_version_that_was_lost_during_an_update_is_loaded_again() -> None:
    snapshot = change_adapter(ready_snapshot(), source={"uri": f"{PREFIX}broken"})
    reborn = replace(snapshot, replicas=(make_replica(0, make_state(boot_id="boot-2")),))
    assert [each.target.digest for each in pick(plan_pool(reborn, NOW), Load)] == [digest_of(f"{PREFIX}pirate")]


def test_suspend_takes_it_from_the_routing_first_and_from_memory_after() -> None:
    snapshot = change_adapter(ready_snapshot(), suspend=True)
    first = plan_pool(snapshot, NOW)
    status = status_of(first, "pirate")
    assert status.digest is None
    assert word(status, ConditionType.READY) == ("False", "Suspended")
    assert word(status, ConditionType.STALLED)[0] == "False"
    assert not first.actions
    snapshot = carry_out(snapshot, first)
    waiting = plan_pool(snapshot, NOW)
    assert not waiting.actions
    snapshot = carry_out(snapshot, waiting)
    unload = plan_pool(snapshot, LATER)
    assert len(pick(unload, Unload)) == 1
    assert plan_pool(carry_out(snapshot, unload, LATER), LATER + 60) == Plan()


def test_what_is_recorded_describes_the_version_that_serves() -> None:
    snapshot = change_adapter(ready_snapshot(), source={"uri": f"{PREFIX}pirate-2"})
    snapshot = carry_out(snapshot, plan_pool(snapshot, NOW))
    [load] = pick(plan_pool(snapshot, NOW), Load)
    broken = Problem(title="t", status=422, code=ProblemCode.UNSUPPORTED_ADAPTER, reasons=["DoRA"])
    loads = {load.target: Attempt(False, NOW, 1, broken)}
    status = status_of(plan_pool(replace(snapshot, memory=replace(snapshot.memory, loads=loads)), NOW), "pirate")
    assert word(status, ConditionType.STALLED) == ("True", "UnsupportedAdapter")
    assert status.verified_digest == status.digest == digest_of(f"{PREFIX}pirate")
    assert status.verified_generation == 1


def test_a_deleted_adapter_is_unloaded_at_once() -> None:
    snapshot = ready_snapshot()
    assert len(pick(plan_pool(replace(snapshot, adapters=()), NOW), Unload)) == 1
    dying = replace(snapshot.adapters[0], meta=replace(snapshot.adapters[0].meta, deleting=True))
    plan = plan_pool(replace(snapshot, adapters=(dying,)), NOW)
    assert len(pick(plan, Unload)) == 1
    assert not plan.statuses


def test_an_unload_is_not_repeated_while_it_runs_or_drains() -> None:
    snapshot = replace(ready_snapshot(), adapters=())
    [unload] = pick(plan_pool(snapshot, NOW), Unload)
    running = replace(snapshot, memory=Memory(unloads={unload.target: Attempt(pending=True, at=NOW)}))
    assert not plan_pool(running, NOW).actions
    draining = make_state(make_version(unload.target.uid, unload.target.digest, VersionPhase.DRAINING))
    assert not plan_pool(replace(snapshot, replicas=(make_replica(0, draining),)), NOW).actions


def test_a_revoked_adapter_leaves_the_routing() -> None:
    snapshot = ready_snapshot()
    snapshot = replace(
        snapshot,
        pool=replace(make_pool(sources={"allow": [{"prefix": "http://other/"}]}), status=snapshot.pool.status),
    )
    plan = plan_pool(snapshot, LATER)
    status = status_of(plan, "pirate")
    assert status.digest is None
    assert word(status, ConditionType.ACCEPTED) == ("False", "SourceNotAllowed")
    assert word(status, ConditionType.STALLED) == ("True", "SourceNotAllowed")


def test_fewer_min_replicas_free_the_surplus() -> None:
    adapter = make_adapter("pirate", minReplicas=2)
    snapshot = ready_snapshot(adapters=(adapter,), replicas=(make_replica(0), make_replica(1)))
    assert snapshot.adapters[0].status.replicas.resident == 2
    shrunk = settle(change_adapter(snapshot, minReplicas=1), LATER)[0]
    assert len(pick(plan_pool(shrunk, LATER + 60), Unload)) == 1


def test_too_few_replicas_are_said() -> None:
    end = ready_snapshot(adapters=(make_adapter("pirate", minReplicas=3),), replicas=(make_replica(0), make_replica(1)))
    placed = find_condition(end.adapters[0].status.conditions, ConditionType.PLACED)
    assert placed is not None
    assert placed.message == "on 2 of 3 wanted replicas: only 2 ready"


def test_no_room_is_a_stall_with_the_numbers_and_ends_when_there_is_room() -> None:
    full = make_replica(0, make_state(budget=SIZE + 1))
    snapshot = make_snapshot(adapters=(make_adapter("a"), make_adapter("b")), replicas=(full,))
    end, _ = settle(snapshot)
    stalled = end.adapters[1].status
    assert word(stalled, ConditionType.STALLED) == ("True", "DoesNotFit")
    message = find_condition(stalled.conditions, ConditionType.READY).message  # type: ignore[union-attr]
    assert message.startswith("needs 1000 bytes, the emptiest replica has 1 free")
    freed, _ = settle(replace(end, adapters=(end.adapters[1],)))
    assert word(freed.adapters[0].status, ConditionType.READY) == ("True", "Ready")


def test_a_failed_load_is_retried_with_backoff_and_elsewhere() -> None:
    snapshot = make_snapshot(adapters=(make_adapter("pirate"),))
    snapshot = carry_out(snapshot, plan_pool(snapshot, NOW))
    [load] = pick(plan_pool(snapshot, NOW), Load)
    busy = Problem(title="busy", status=503, code=ProblemCode.LOADER_BUSY)
    failed = replace(
        snapshot, memory=replace(snapshot.memory, loads={load.target: Attempt(False, NOW, failures=3, problem=busy)})
    )
    plan = plan_pool(failed, NOW)
    assert not pick(plan, Load)
    assert plan.again_in == pytest.approx(4.0)
    assert word(status_of(plan, "pirate"), ConditionType.RECONCILING) == ("True", "Progressing")
    assert pick(plan_pool(failed, NOW + 4), Load)
    other = replace(failed, replicas=(*failed.replicas, make_replica(1)))
    assert [each.target.replica for each in pick(plan_pool(other, NOW), Load)] == ["smol-shared-1"]


def test_a_version_that_no_longer_matches_the_recorded_digest_has_drifted() -> None:
    snapshot = make_snapshot(adapters=(make_adapter("pirate"),))
    snapshot = carry_out(snapshot, plan_pool(snapshot, NOW))
    [load] = pick(plan_pool(snapshot, NOW), Load)
    changed = Problem(title="digest", status=409, code=ProblemCode.DIGEST_MISMATCH, detail="found sha256:0")
    failed = replace(snapshot, memory=replace(snapshot.memory, loads={load.target: Attempt(False, NOW, 1, changed)}))
    assert word(status_of(plan_pool(failed, NOW), "pirate"), ConditionType.STALLED) == ("True", "SourceDrifted")


def test_a_pending_load_counts_as_a_place_and_is_not_repeated() -> None:
    snapshot = make_snapshot(adapters=(make_adapter("pirate"),), replicas=(make_replica(0), make_replica(1)))
    snapshot = carry_out(snapshot, plan_pool(snapshot, NOW))
    [load] = pick(plan_pool(snapshot, NOW), Load)
    elsewhere = replace(load.target, replica="smol-shared-1")
    pending = replace(snapshot, memory=replace(snapshot.memory, loads={elsewhere: Attempt(True, NOW)}))
    assert not pick(plan_pool(pending, NOW), Load)


def test_warnings_of_the_files_are_told_once_beside_the_verdict() -> None:
    snapshot = make_snapshot(adapters=(make_adapter("pirate"),))
    report = report_for(f"{PREFIX}pirate", warnings=["B is zero in layer 3"])
    key = InspectionKey("uid-demo-pirate", 1)
    snapshot = replace(snapshot, memory=Memory(inspections={key: Attempt(False, NOW, report=report)}))
    plan = plan_pool(snapshot, NOW)
    assert [(each.reason, each.message) for each in plan.warnings] == [("VerifiedWithWarnings", "B is zero in layer 3")]
    end, _ = settle(carry_out(snapshot, plan))
    assert word(end.adapters[0].status, ConditionType.VERIFIED) == ("True", "VerifiedWithWarnings")
    restarted = replace(end, memory=Memory())
    assert plan_pool(restarted, NOW) == Plan()


def test_without_any_replica_a_ready_adapter_waits_and_keeps_its_digest() -> None:
    snapshot = replace(ready_snapshot(), replicas=())
    status = status_of(plan_pool(snapshot, NOW), "pirate")
    assert word(status, ConditionType.READY) == ("False", "NoReplicaReady")
    assert word(status, ConditionType.VERIFIED) == ("True", "Verified")
    assert word(status, ConditionType.STALLED)[0] == "False"
    assert status.digest == digest_of(f"{PREFIX}pirate")


def test_a_draining_or_unready_engine_gets_no_work() -> None:
    adapters = (make_adapter("pirate"),)
    for replica in (
        make_replica(0, make_state(draining=True)),
        make_replica(0, make_state(ready=False)),
        make_replica(0, make_state(memory=None)),
        make_replica(0, deleting=True),
        make_replica(0, ready=False),
    ):
        assert not pick(plan_pool(make_snapshot(adapters=adapters, replicas=(replica,)), NOW), Inspect)


def test_routing_moves_when_every_chosen_replica_has_answered_or_failed() -> None:
    adapter = make_adapter("pirate", minReplicas=2)
    snapshot = make_snapshot(adapters=(adapter,), replicas=(make_replica(0), make_replica(1)))
    snapshot = carry_out(snapshot, plan_pool(snapshot, NOW))
    first, second = pick(plan_pool(snapshot, NOW), Load)
    held = make_state(make_version(first.target.uid, first.target.digest))
    half = replace(snapshot, replicas=(make_replica(0, held), make_replica(1)))
    loading = replace(half, memory=replace(half.memory, loads={second.target: Attempt(True, NOW)}))
    assert not plan_pool(loading, NOW).statuses
    full = Problem(title="full", status=413, code=ProblemCode.DOES_NOT_FIT, needed=5, free=1)
    failed = replace(half, memory=replace(half.memory, loads={second.target: Attempt(False, NOW, 1, full)}))
    assert word(status_of(plan_pool(failed, NOW), "pirate"), ConditionType.READY) == ("True", "Ready")


def test_a_pool_that_goes_gets_an_empty_plan() -> None:
    pool = make_pool()
    gone = replace(pool, meta=replace(pool.meta, deleting=True))
    assert plan_pool(make_snapshot(pool=gone, adapters=(make_adapter("a"),)), NOW) == Plan()


def test_a_pool_that_cannot_be_read_only_says_so() -> None:
    plan = plan_pool(make_snapshot(pool=replace(make_pool(), spec=None, invalid="spec.x: unknown")), NOW)
    assert not plan.actions
    assert [each.kind for each in plan.statuses] == ["LoraPool"]


def test_the_next_key_expiry_is_a_moment_to_look_again() -> None:
    keys = [{"id": "k", "sha256": "0" * 64, "expiresAt": "2027-01-15T08:01:00Z"}]
    plan = plan_pool(make_snapshot(tenants=(make_tenant("acme", apiKeys=keys),)), NOW)
    assert plan.again_in == pytest.approx(60.0)


def test_an_inspection_that_failed_is_repeated_when_it_is_due() -> None:
    problem = Problem(title="no route", status=502, code=ProblemCode.SOURCE_UNREACHABLE)
    key = InspectionKey("uid-demo-pirate", 1)
    snapshot = make_snapshot(
        adapters=(make_adapter("pirate"),), memory=Memory(inspections={key: Attempt(False, NOW, 2, problem)})
    )
    plan = plan_pool(snapshot, NOW)
    assert plan.again_in == pytest.approx(2.0)
    assert word(status_of(plan, "pirate"), ConditionType.READY) == ("False", "SourceUnreachable")
    assert word(status_of(plan, "pirate"), ConditionType.STALLED)[0] == "False"
    assert pick(plan_pool(snapshot, NOW + 2), Inspect)


def test_orphans_are_told_once() -> None:
    orphans = OrphanSnapshot((make_adapter("pirate"),), (make_tenant("acme"),))
    plan = plan_orphans(orphans, NOW)
    assert [each.kind for each in plan.statuses] == ["LoraAdapter", "Tenant"]
    assert all(find_condition(each.status.conditions, ConditionType.STALLED).reason == "PoolNotFound"  # type: ignore[union-attr]
               for each in plan.statuses)  # fmt: skip
    told = OrphanSnapshot(
        tuple(replace(each, status=plan.statuses[0].status) for each in orphans.adapters),  # type: ignore[arg-type]
        tuple(replace(each, status=plan.statuses[1].status) for each in orphans.tenants),  # type: ignore[arg-type]
    )
    assert plan_orphans(told, NOW) == Plan()


# --- laws ----------------------------------------------------------------------------------------------------------

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
    for _ in range(6):
        plan = plan_pool(snapshot, NOW)
        assert plan == plan_pool(snapshot, NOW)
        snapshot = carry_out(snapshot, plan, NOW, sizes)
        for replica in snapshot.replicas:
            assert replica.state is not None
            assert replica.state.memory is not None
            assert sum(each.bytes for each in replica.state.versions) <= replica.state.memory.adapters
    assert plan_pool(snapshot, NOW) == Plan()


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


def test_inspections_avoid_replicas_that_give_no_answer_or_failed_them_before() -> None:
    adapters = tuple(make_adapter(f"a{number}") for number in range(4))
    replicas = tuple(make_replica(number) for number in range(3))
    problem = Problem(title="no answer", status=503, code=ProblemCode.INTERNAL)
    failed = Attempt(False, NOW - 5, 1, problem, replica="smol-shared-1")
    memory = Memory(inspections={InspectionKey("uid-demo-a0", 1): failed}, silent={"smol-shared-2": NOW - 5})
    plan = plan_pool(make_snapshot(adapters=adapters, replicas=replicas, memory=memory), NOW)
    where = {each.key.uid: each.replica for each in pick(plan, Inspect)}
    assert where["uid-demo-a0"] == "smol-shared-0"
    assert set(where.values()) == {"smol-shared-0", "smol-shared-1"}
    alone = make_snapshot(adapters=adapters[:1], replicas=replicas[2:], memory=memory)
    assert [each.replica for each in pick(plan_pool(alone, NOW), Inspect)] == ["smol-shared-2"], "better than nobody"
    later = plan_pool(make_snapshot(adapters=adapters[:1], replicas=replicas[2:], memory=Memory()), NOW)
    assert len(pick(later, Inspect)) == 1


def test_files_that_were_verified_on_a_replica_are_loaded_there_unless_that_one_is_much_fuller() -> None:
    adapter = make_adapter("pirate")
    report = report_for(f"{PREFIX}pirate")
    inspected = Attempt(False, NOW, report=report, replica="smol-shared-1")
    memory = Memory(inspections={InspectionKey(adapter.meta.uid, 1): inspected})
    other = make_version("other", digest_of("other"))

    def loaded_on(*held: int) -> str:
        replicas = tuple(
            make_replica(number, make_state(*([other] if size else []), adapters_used=size))
            for number, size in enumerate(held)
        )
        snapshot = make_snapshot(adapters=(adapter,), replicas=replicas, memory=memory)
        [load] = pick(plan_pool(snapshot, NOW), Load)
        return str(load.target.replica)

    assert loaded_on(0, 0) == "smol-shared-1"
    full = make_state(*(make_version(f"x{number}", digest_of(str(number))) for number in range(3)))
    snapshot = make_snapshot(adapters=(adapter,), replicas=(make_replica(0), make_replica(1, full)), memory=memory)
    assert [each.target.replica for each in pick(plan_pool(snapshot, NOW), Load)] == ["smol-shared-0"]


def test_a_spec_that_declares_the_verified_digest_needs_no_inspection_and_no_load() -> None:
    snapshot = ready_snapshot()
    digest = digest_of(f"{PREFIX}pirate")
    for uri in ("pirate", "mirror"):
        declared = change_adapter(snapshot, source={"uri": f"{PREFIX}{uri}", "digest": digest})
        plan = plan_pool(declared, NOW)
        assert not plan.actions
        assert word(status_of(plan, "pirate"), ConditionType.READY) == ("True", "Ready")
        assert status_of(plan, "pirate").verified_generation == 2
    other = change_adapter(snapshot, source={"uri": f"{PREFIX}pirate", "digest": digest_of("other")})
    assert len(pick(plan_pool(other, NOW), Inspect)) == 1


def test_a_replaced_version_gets_its_grace_though_no_condition_changed_at_the_flip() -> None:
    snapshot = ready_snapshot()
    old, new = digest_of(f"{PREFIX}pirate"), digest_of(f"{PREFIX}pirate-2")
    snapshot = change_adapter(snapshot, source={"uri": f"{PREFIX}pirate-2"})
    long_after = NOW + 3600
    # The words of progress are never written: the verdict of the new generation comes first.
    for _ in range(2):
        plan = plan_pool(snapshot, long_after)
        snapshot = carry_out(snapshot, replace(plan, statuses=()), long_after)
    flip = plan_pool(snapshot, long_after)
    assert status_of(flip, "pirate").digest == new
    snapshot = carry_out(snapshot, flip, long_after)
    waiting = plan_pool(snapshot, long_after)
    assert not waiting.actions
    assert [each.digest for each in waiting.surplus] == [old]
    snapshot = carry_out(snapshot, waiting, long_after)
    assert not plan_pool(snapshot, long_after + GRACE_SECONDS - 1).actions
    assert len(pick(plan_pool(snapshot, long_after + GRACE_SECONDS), Unload)) == 1


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_settled_pool_stays_settled_when_the_clock_is_set(jump: float) -> None:
    snapshot = ready_snapshot(tenants=(make_tenant("acme"),))
    plan = plan_pool(snapshot, NOW + jump)
    assert not plan.actions
    assert not plan.statuses


def test_verdicts_are_written_before_words_of_progress() -> None:
    ready = ready_snapshot()
    fresh = (make_adapter("aaa"), make_adapter("bbb", model="smollm2"))
    plan = plan_pool(replace(ready, adapters=(*fresh, *ready.adapters)), NOW)
    assert [each.name for each in plan.statuses if each.kind == "LoraAdapter"] == ["bbb", "aaa"]


def test_a_status_stays_small_however_many_replicas_there_are() -> None:
    replicas = tuple(make_replica(number) for number in range(50))
    end, _ = settle(make_snapshot(adapters=(make_adapter("pirate", minReplicas=20),), replicas=replicas))
    status = end.adapters[0].status
    assert status.replicas is not None
    assert (status.replicas.resident, status.replicas.desired) == (20, 20)
    assert len(status.placements) == 8


def test_counts_and_places_are_written_once_when_they_have_come_to_rest() -> None:
    snapshot = change_adapter(
        ready_snapshot(replicas=tuple(make_replica(number) for number in range(3))), minReplicas=2
    )
    end, writes = settle(snapshot)
    last = end.adapters[0].status
    assert last.replicas is not None
    assert (last.replicas.resident, last.replicas.desired) == (2, 2)
    assert len(last.placements) == 2
    lost = next(each.replica for each in last.placements)
    states = tuple(replace(each, ready=each.name != lost) for each in end.replicas)
    end, writes = settle(replace(end, replicas=states))
    moved = [each for each in writes if each.kind == "LoraAdapter"]
    assert len(moved) == 1, "no word while it moves, one when it is there"
    assert isinstance(moved[0].status, LoraAdapterStatus)
    assert lost not in {each.replica for each in moved[0].status.placements}
    assert word(end.adapters[0].status, ConditionType.READY) == ("True", "Ready")
