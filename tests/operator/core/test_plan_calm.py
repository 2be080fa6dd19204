"""Plans disturb nothing that need not change, and say each thing once."""

from dataclasses import replace
from typing import Any

import pytest

from lorafleet_contracts.admin import Problem, ProblemCode
from lorafleet_contracts.conditions import ConditionType, find_condition
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_operator.core.actions import Inspect, Load
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.snapshot import (
    Attempt,
    InspectionKey,
    Memory,
    PoolSnapshot,
    VersionOn,
)
from tests.support.fleet import (
    NOW,
    PREFIX,
    digest_of,
    make_adapter,
    make_replica,
    make_snapshot,
    make_state,
    make_tenant,
    make_version,
    report_for,
)
from tests.support.plans import change_adapter, pick, ready_snapshot, settle, status_of, word


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


def test_why_a_replica_lacks_what_serves_is_said_once_until_it_has_it() -> None:
    replicas = (make_replica(0), make_replica(1))
    settled = ready_snapshot(adapters=(make_adapter("pirate", min_replicas=2),), replicas=replicas)
    digest = settled.adapters[0].status.digest
    assert digest
    emptied = replace(settled, replicas=(settled.replicas[0], make_replica(1, make_state(boot_id="b9"))))
    problem = Problem(title="no", status=500, code=ProblemCode.INTERNAL, detail="No space left on device")

    def after(**attempt: Any) -> PoolSnapshot:
        target = VersionOn("smol-shared-1", "b9", "uid-demo-pirate", digest)
        tried = Attempt(**{"pending": False, "at": NOW, "problem": problem, **attempt})
        return replace(emptied, memory=Memory(loads={target: tried}))

    assert plan_pool(after(failures=1), NOW).statuses == (), "it may pass"
    told = status_of(plan_pool(after(failures=2), NOW), "pirate")
    assert word(told, ConditionType.READY) == ("True", "Ready")
    placed = find_condition(told.conditions, ConditionType.PLACED)
    assert placed
    assert "smol-shared-1" in placed.message
    assert "No space left on device" in placed.message
    adapters = (replace(settled.adapters[0], status=told),)
    for again in ({"failures": 2, "pending": True}, {"failures": 3}):
        assert plan_pool(replace(after(**again), adapters=adapters), NOW).statuses == (), again
    whole = status_of(plan_pool(replace(settled, adapters=adapters), NOW), "pirate")
    assert find_condition(whole.conditions, ConditionType.PLACED).message == ""
