"""Whole plans: from nothing to Ready, losses and removals."""

from dataclasses import replace

import pytest

from lorafleet_contracts.admin import Problem, ProblemCode, Tier
from lorafleet_contracts.conditions import ConditionType, find_condition
from lorafleet_operator.core.actions import Apply, Inspect, Load, Plan, Unload
from lorafleet_operator.core.planning import plan_orphans, plan_pool
from lorafleet_operator.core.popularity import Pace, Rates, Track
from lorafleet_operator.core.snapshot import (
    Attempt,
    EngineDefaults,
    InspectionKey,
    Memory,
    Neighbours,
    OrphanSnapshot,
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
from tests.support.plans import LATER, change_adapter, pick, ready_snapshot, settle, status_of, word


def test_a_new_pool_gets_its_objects_with_the_secret_first() -> None:
    plan = plan_pool(make_snapshot(replicas=(), workloads={}), NOW)
    assert [each.key for each in pick(plan, Apply)] == [
        "Secret/smol-tokens",
        "Service/smol-shared",
        "PodDisruptionBudget/smol-shared",
        "StatefulSet/smol-shared",
    ]


def test_the_network_policy_stands_before_the_first_engine() -> None:
    defaults = EngineDefaults("registry/engine:1", neighbours=Neighbours("fleet", "main"))
    plan = plan_pool(make_snapshot(replicas=(), workloads={}, defaults=defaults), NOW)
    keys = [each.key for each in pick(plan, Apply)]
    assert keys.index("NetworkPolicy/smol-shared") < keys.index("StatefulSet/smol-shared")


def test_what_is_applied_already_is_not_applied_again() -> None:
    snapshot = make_snapshot()
    assert not pick(plan_pool(carry_out(snapshot, plan_pool(snapshot, NOW)), NOW), Apply)


def test_an_adapter_is_inspected_then_loaded_then_ready_with_two_writes() -> None:
    snapshot = make_snapshot(adapters=(make_adapter("pirate"),))
    first = plan_pool(snapshot, NOW)
    assert [each.fetch.source.uri for each in pick(first, Inspect)] == [f"{PREFIX}pirate"]
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
    snapshot = make_snapshot(adapters=(make_adapter("a", pinned=True), make_adapter("b")), replicas=(full,))
    end, _ = settle(snapshot)
    stalled = end.adapters[1].status
    assert word(stalled, ConditionType.STALLED) == ("True", "DoesNotFit")
    message = find_condition(stalled.conditions, ConditionType.READY).message  # type: ignore[union-attr]
    assert message.startswith("needs 1000 bytes, the emptiest replica has 1 free")
    freed, _ = settle(replace(end, adapters=(end.adapters[1],)))
    assert word(freed.adapters[0].status, ConditionType.READY) == ("True", "Ready")


def test_what_does_not_fit_beside_others_answers_from_the_host_tier() -> None:
    full = make_replica(0, make_state(budget=SIZE + 1))
    snapshot = make_snapshot(adapters=(make_adapter("a"), make_adapter("b")), replicas=(full,))
    end, _ = settle(snapshot)
    assert [word(each.status, ConditionType.READY) for each in end.adapters] == [("True", "Ready")] * 2
    end, _ = settle(end, LATER)
    [state] = [each.state for each in end.replicas]
    assert state is not None
    assert {each.wanted for each in state.versions} == {Tier.HOST}, "both share the room"
    alone, _ = settle(replace(end, adapters=end.adapters[1:]), LATER + 60)
    assert [each.wanted for each in alone.replicas[0].state.versions] == [Tier.GPU]  # type: ignore[union-attr]


def test_a_pinned_adapter_survives_the_loss_of_a_replica_where_it_is() -> None:
    replicas = tuple(make_replica(number) for number in range(3))
    end = ready_snapshot(adapters=(make_adapter("pirate", pinned=True),), replicas=replicas)
    places = end.adapters[0].status.placements
    assert [each.reason for each in places] == ["LeastLoaded", "Redundancy"]
    held = [version for each in end.replicas if each.state for version in each.state.versions]
    assert [(each.tier, each.pinned) for each in held] == [(Tier.GPU, True)] * 2
    lost = tuple(replace(each, ready=each.name != places[0].replica) for each in end.replicas)
    plan = plan_pool(replace(end, replicas=lost), LATER)
    assert not [each for each in plan.statuses if each.kind == "LoraAdapter"], "it stays Ready"
    assert len(pick(plan, Load)) == 1, "and gets its second replica back"


def test_a_hot_adapter_gets_a_second_replica_within_the_moves_of_an_hour() -> None:
    adapters = (make_adapter("hot"), make_adapter("cold"))
    snapshot, _ = settle(make_snapshot(adapters=adapters, replicas=tuple(make_replica(number) for number in range(2))))
    load = Track(adapters={"uid-demo-hot": Rates(Pace(5.0, 5.0)), "uid-demo-cold": Rates(Pace(0.2, 0.2))})
    asked = replace(snapshot, load=load)
    still = replace(asked, memory=replace(asked.memory, moved_at=NOW - 59.0))
    assert not pick(plan_pool(still, NOW), Load), "one move a minute by default"
    plan = plan_pool(asked, NOW)
    assert plan.moves == 1
    assert [(each.name, each.choice.reason) for each in pick(plan, Load)] == [("hot", "Redundancy")]
    end, _ = settle(asked)
    assert end.memory.moved_at == NOW
    assert {each.reason for each in end.adapters[0].status.placements} == {"LeastLoaded", "Redundancy"}
    none = replace(
        asked, pool=make_pool(placement={"maxMovesPerHour": 0}, replicas={"min": 2}, status=asked.pool.status)
    )
    assert not pick(plan_pool(none, NOW), Load)


def test_a_version_that_moves_stays_where_it_was_until_it_answers_where_it_goes() -> None:
    adapters = tuple(make_adapter(f"a{number:02d}") for number in range(10))
    one, _ = settle(make_snapshot(pool=make_pool(replicas={"min": 2}), adapters=adapters))
    load = Track(adapters={each.meta.uid: Rates(Pace(1.0, 1.0)) for each in adapters})
    two = replace(one, replicas=(*one.replicas, make_replica(1)), load=load)
    plan = plan_pool(two, NOW)
    [moved] = pick(plan, Load)
    assert (moved.choice.reason, moved.target.replica, plan.moves) == ("Balance", "smol-shared-1", 1)
    coming = replace(two, memory=replace(two.memory, loads={moved.target: Attempt(True, NOW)}, moved_at=NOW))
    assert not [each for each in plan_pool(coming, LATER).surplus if each.uid == moved.target.uid]
    there = replace(carry_out(two, plan), load=load)
    after = plan_pool(there, NOW)
    assert [(each.uid, each.replica) for each in after.surplus] == [(moved.target.uid, "smol-shared-0")]
    gone = plan_pool(carry_out(there, after), LATER)
    assert [(each.target.uid, each.target.replica) for each in pick(gone, Unload)] == [
        (moved.target.uid, "smol-shared-0")
    ]


def test_a_failed_load_is_retried_with_backoff_and_elsewhere() -> None:
    snapshot = make_snapshot(pool=make_pool(replicas={"min": 2}), adapters=(make_adapter("pirate"),))
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
