"""Events tell what happened: who must act, that it is well again, which version took over; a first Ready is none."""

from dataclasses import replace

from lorafleet_contracts.admin import Problem, ProblemCode
from lorafleet_operator.core.actions import Plan
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.snapshot import Attempt, InspectionKey, Memory
from tests.support.fleet import (
    NOW,
    PREFIX,
    carry_out,
    digest_of,
    make_adapter,
    make_pool,
    make_replica,
    make_snapshot,
    make_tenant,
)
from tests.support.plans import LATER, change_adapter, ready_snapshot, settle


def told(plan: Plan) -> list[tuple[str, str, str]]:
    return [(each.about.kind, each.type, each.reason) for each in plan.warnings]


def test_a_first_ready_is_no_event() -> None:
    snapshot = make_snapshot(adapters=(make_adapter("pirate"),), tenants=(make_tenant("acme"),))
    for _ in range(5):
        plan = plan_pool(snapshot, NOW)
        assert not plan.warnings
        snapshot = carry_out(snapshot, plan)


def test_an_update_that_is_refused_and_its_rollback() -> None:
    snapshot = change_adapter(ready_snapshot(), source={"uri": f"{PREFIX}broken"})
    problem = Problem(title="unsupported", status=422, code=ProblemCode.UNSUPPORTED_ADAPTER, reasons=["DoRA"])
    inspected = Memory(inspections={InspectionKey("uid-demo-pirate", 2): Attempt(False, NOW, 1, problem)})
    refused = plan_pool(replace(snapshot, memory=inspected), LATER)
    assert told(refused) == [("LoraAdapter", "Warning", "UnsupportedAdapter")]
    assert "DoRA" in refused.warnings[0].message
    stalled = carry_out(replace(snapshot, memory=inspected), refused, LATER)
    assert not plan_pool(stalled, LATER).warnings, "once"
    (adapter,) = stalled.adapters
    assert adapter.spec is not None
    back = replace(stalled, adapters=(replace(adapter, meta=replace(adapter.meta, generation=3)),), memory=Memory())
    back = replace(back, adapters=tuple(replace(each, spec=make_adapter("pirate").spec) for each in back.adapters))
    events = []
    for _ in range(4):
        plan = plan_pool(back, LATER)
        events += plan.warnings
        back = carry_out(back, plan, LATER)
    assert [(each.type, each.reason) for each in events] == [("Normal", "Updated")]
    assert events[0].message == f"{digest_of(f'{PREFIX}pirate')} serves on: it is what is asked for now"


def test_a_tenant_gets_its_key() -> None:
    keyless = settle(make_snapshot(tenants=(make_tenant("acme", apiKeys=[]),)))[0]
    (stalled,) = keyless.tenants
    keyed = replace(keyless, tenants=(replace(stalled, spec=make_tenant("acme").spec),))
    (event,) = plan_pool(keyed, NOW).warnings
    assert (event.type, event.reason, event.message) == ("Normal", "Recovered", "ready again, after: NoValidKey")


def test_a_new_version_takes_over() -> None:
    snapshot, events = change_adapter(ready_snapshot(), source={"uri": f"{PREFIX}pirate-2"}), []
    for _ in range(3):
        plan = plan_pool(snapshot, NOW)
        events += plan.warnings
        snapshot = carry_out(snapshot, plan)
    assert [each.reason for each in events] == ["Updated"]
    assert events[0].message == f"{digest_of(f'{PREFIX}pirate-2')} serves; {digest_of(f'{PREFIX}pirate')} did before"


def test_a_replica_is_lost_and_comes_back() -> None:
    both = (make_replica(0), make_replica(1))
    whole = settle(make_snapshot(pool=make_pool(replicas={"min": 2}), replicas=both))[0]
    one = replace(whole, replicas=both[:1])
    lost = plan_pool(one, NOW)
    assert told(lost) == [("LoraPool", "Warning", "RedundancyLost")]
    again = replace(carry_out(one, replace(lost, actions=())), replicas=both)
    assert told(plan_pool(again, NOW)) == [("LoraPool", "Normal", "FullyRedundant")]


def test_two_turns_of_one_object_have_two_names() -> None:
    snapshot = make_snapshot(tenants=(make_tenant("acme", apiKeys=[]),))
    first = plan_pool(snapshot, NOW).warnings
    later = plan_pool(snapshot, NOW + 60).warnings
    assert [each.reason for each in (*first, *later)] == ["NoValidKey", "NoValidKey"]
    assert first[0].name != later[0].name
    assert len(first[0].name) <= 253
