"""The machine that gives a tenant replicas of its own and takes them back, row by row, and the budget for all."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_contracts.admin import ParityState
from lorafleet_contracts.names import merged_set, private_set
from lorafleet_contracts.resources.tenant import PromotionStatus
from lorafleet_operator.core.conditions import parse_timestamp, timestamp
from lorafleet_operator.core.dedication import (
    Budget,
    Promoted,
    decide_promotions,
    next_moment,
    replicas_for,
    routed_set,
    set_of,
)
from lorafleet_operator.core.promotion import (
    DRAIN_SECONDS,
    LOST_SECONDS,
    RETRY_SECONDS,
    SETTLE_SECONDS,
    TABLE,
    WARM_SECONDS,
    Own,
    Rules,
    Stage,
    TenantCase,
    Why,
)
from tests.support.cases import cases
from tests.support.fleet import NOW

RULES = Rules(enabled=True, promote_at=0.6, promote_after=900.0, demote_at=0.3, demote_after=1800.0)
VERSION, SOURCE = "a1@sha256:" + "1" * 64, "http://assets/a1"
NEXT = "a1@sha256:" + "2" * 64
MERGED, PRIVATE = merged_set("t1"), private_set("t1")
GOOD = ParityState(merged=1.2e-3, unmerged=1e-3, same_argmax=0.99, positions=160)
BAD = ParityState(merged=1.6e-3, unmerged=1e-3, same_argmax=0.9, positions=160)


def tenant(load: float = 0.8, **changes: Any) -> TenantCase:
    """A tenant whose one adapter carries all of its load."""
    fields: dict[str, Any] = {
        "key": "demo/t1", "uid": "t1", "created": "2026-11-30T00:00:00Z", "isolated": False, "load": load,
        "top": "a1", "share": 1.0, "serving": {"a1": (VERSION, SOURCE)},
    }  # fmt: skip
    return TenantCase(**{**fields, **changes})


def at(stage: Stage, why: Why, age: float = 0.0, **changes: Any) -> PromotionStatus:
    """A status of that age; beyond Shared with a merged set."""
    own = {} if stage is Stage.SHARED else {"set": MERGED, "version": VERSION, "source": SOURCE}
    fields = {
        "stage": stage.value,
        "reason": why.value,
        "message": "m",
        "since": timestamp(NOW - age),
        **own,
        **changes,
    }
    return PromotionStatus.model_validate(fields)


def decide(case: TenantCase, rules: Rules = RULES, dedicated: int = 2, spare: int = 9) -> Promoted:
    [promoted] = decide_promotions([case], rules, Budget(dedicated, spare, lambda load: int(load)), NOW)
    return promoted


READY = Own(wanted=1, heard=1, usable=1, warm=1, parity=GOOD)
SHARED, WARMING, CHECKING, CUTTING, DEDICATED, DRAINING = Stage
ROWS: list[tuple[str, TenantCase, tuple[Stage, Why] | None]] = [
    ("a light tenant has no status", tenant(0.5), None),
    ("a heavy one is told", tenant(), (SHARED, Why.ABOVE_THRESHOLD)),
    ("and waits", tenant(status=at(SHARED, Why.ABOVE_THRESHOLD, 899)), (SHARED, Why.ABOVE_THRESHOLD)),
    ("and starts", tenant(status=at(SHARED, Why.ABOVE_THRESHOLD, 900)), (WARMING, Why.LOAD)),
    ("a dip is forgiven", tenant(0.55, status=at(SHARED, Why.ABOVE_THRESHOLD, 9)), (SHARED, Why.ABOVE_THRESHOLD)),
    ("a fall is not", tenant(0.5, status=at(SHARED, Why.ABOVE_THRESHOLD, 950)), (SHARED, Why.BELOW_THRESHOLD)),
    ("isolation starts at once", tenant(0.0, isolated=True), (WARMING, Why.ISOLATION)),
    ("a refused tenant gets nothing", tenant(isolated=True, admitted=False), None),
    ("what serves nowhere is not worth a set", tenant(serving={}, status=at(SHARED, Why.ABOVE_THRESHOLD, 950)),
     (SHARED, Why.ABOVE_THRESHOLD)),
    ("parity is not tried again soon", tenant(status=at(SHARED, Why.PARITY_FAILED, 80_000, version=VERSION)),
     (SHARED, Why.PARITY_FAILED)),
    ("but a day later", tenant(status=at(SHARED, Why.PARITY_FAILED, 86_400, version=VERSION)),
     (SHARED, Why.ABOVE_THRESHOLD)),
    ("or with another version", tenant(status=at(SHARED, Why.PARITY_FAILED, 9, version=NEXT)),
     (SHARED, Why.ABOVE_THRESHOLD)),
    ("or where it would not be merged", tenant(share=0.5, status=at(SHARED, Why.PARITY_FAILED, 9, version=VERSION)),
     (SHARED, Why.ABOVE_THRESHOLD)),
    ("a set that did not come is tried later", tenant(status=at(SHARED, Why.NOT_READY, 599)), (SHARED, Why.NOT_READY)),
    ("a changed version starts anew at once", tenant(status=at(SHARED, Why.VERSION_CHANGED, 1)), (WARMING, Why.LOAD)),
    ("unless that is long ago", tenant(status=at(SHARED, Why.VERSION_CHANGED, 901)), (SHARED, Why.ABOVE_THRESHOLD)),
    ("warming waits for engines", tenant(status=at(WARMING, Why.LOAD, 9), own=Own(wanted=1)), (WARMING, Why.LOAD)),
    ("and for its workload", tenant(status=at(WARMING, Why.LOAD, 9)), (WARMING, Why.LOAD)),
    ("engines are up", tenant(status=at(WARMING, Why.LOAD, 9), own=Own(wanted=1, heard=1)), (CHECKING, Why.MERGING)),
    ("a private set loads", tenant(status=at(WARMING, Why.LOAD, set=PRIVATE, version=None), own=Own(1, 1)),
     (CHECKING, Why.LOADING)),
    ("warming ends", tenant(status=at(WARMING, Why.LOAD, WARM_SECONDS), own=Own(wanted=1, trouble="no GPU")),
     (DRAINING, Why.NOT_READY)),
    ("an engine that ended over parity", tenant(status=at(WARMING, Why.LOAD), own=Own(1, parity_failed=True)),
     (DRAINING, Why.PARITY_FAILED)),
    ("checking waits", tenant(status=at(CHECKING, Why.MERGING, 9), own=Own(1, 1)), (CHECKING, Why.MERGING)),
    ("parity passes", tenant(status=at(CHECKING, Why.MERGING), own=READY), (CUTTING, Why.PARITY_PASSED)),
    ("a private set is warm", tenant(status=at(CHECKING, Why.LOADING, set=PRIVATE, version=None), own=Own(1, 1, 1, 1)),
     (CUTTING, Why.WARM)),
    ("parity fails", tenant(status=at(CHECKING, Why.MERGING), own=replace(READY, parity=BAD)),
     (DRAINING, Why.PARITY_FAILED)),
    ("parity fails in the engine", tenant(status=at(CHECKING, Why.MERGING), own=Own(1, parity_failed=True)),
     (DRAINING, Why.PARITY_FAILED)),
    ("checking ends", tenant(status=at(CHECKING, Why.MERGING, WARM_SECONDS), own=Own(1, 1)), (DRAINING, Why.NOT_READY)),
    ("gateways get time", tenant(status=at(CUTTING, Why.WARM, SETTLE_SECONDS - 1), own=READY), (CUTTING, Why.WARM)),
    ("and have had it", tenant(status=at(CUTTING, Why.WARM, SETTLE_SECONDS), own=READY), (DEDICATED, Why.SERVING)),
    ("it serves", tenant(status=at(DEDICATED, Why.SERVING, 99), own=READY), (DEDICATED, Why.SERVING)),
    ("it is lost", tenant(status=at(DEDICATED, Why.SERVING, 99), own=Own(1)), (DEDICATED, Why.SET_LOST)),
    ("it is back", tenant(status=at(DEDICATED, Why.SET_LOST, 99), own=READY), (DEDICATED, Why.SERVING)),
    ("it stays away", tenant(status=at(DEDICATED, Why.SET_LOST, LOST_SECONDS), own=Own(1)), (DRAINING, Why.SET_LOST)),
    ("the isolated wait for it", tenant(0.0, isolated=True, own=Own(1),
     status=at(DEDICATED, Why.SET_LOST, 9e6, set=PRIVATE, version=None)), (DEDICATED, Why.SET_LOST)),
    ("the load falls", tenant(0.29, status=at(DEDICATED, Why.SERVING), own=READY), (DEDICATED, Why.BELOW_THRESHOLD)),
    ("and swings", tenant(0.32, status=at(DEDICATED, Why.BELOW_THRESHOLD), own=READY),
     (DEDICATED, Why.BELOW_THRESHOLD)),
    ("and recovers", tenant(0.34, status=at(DEDICATED, Why.BELOW_THRESHOLD), own=READY), (DEDICATED, Why.SERVING)),
    ("and has fallen", tenant(0.1, status=at(DEDICATED, Why.BELOW_THRESHOLD, 1800), own=READY),
     (DRAINING, Why.DEMOTED)),
    ("between the thresholds all stays", tenant(0.4, status=at(DEDICATED, Why.SERVING, 9e6), own=READY),
     (DEDICATED, Why.SERVING)),
    ("the isolated are not demoted", tenant(0.0, isolated=True, own=READY,
     status=at(DEDICATED, Why.SERVING, 9e6, set=PRIVATE, version=None)), (DEDICATED, Why.SERVING)),
    ("another version serves", tenant(serving={"a1": (NEXT, SOURCE)}, status=at(DEDICATED, Why.SERVING), own=READY),
     (DRAINING, Why.VERSION_CHANGED)),
    ("no version serves", tenant(serving={}, status=at(CHECKING, Why.MERGING), own=READY),
     (DRAINING, Why.VERSION_CHANGED)),
    ("isolation wants no merged set", tenant(isolated=True, status=at(CUTTING, Why.WARM), own=READY),
     (DRAINING, Why.NOT_WANTED)),
    ("the tenant is refused", tenant(admitted=False, status=at(WARMING, Why.LOAD)), (DRAINING, Why.NOT_WANTED)),
    ("draining waits for requests", tenant(status=at(DRAINING, Why.DEMOTED, 99), own=replace(READY, busy=3)),
     (DRAINING, Why.DEMOTED)),
    ("and for gateways", tenant(status=at(DRAINING, Why.DEMOTED, 4), own=READY), (DRAINING, Why.DEMOTED)),
    ("and takes home what it alone answers", tenant(at_home=True, status=at(DRAINING, Why.DEMOTED, 99), own=READY),
     (DRAINING, Why.DEMOTED)),
    ("and is done", tenant(0.1, status=at(DRAINING, Why.DEMOTED, 5), own=READY), (SHARED, Why.DEMOTED)),
    ("and ends in any case", tenant(status=at(DRAINING, Why.DEMOTED, DRAIN_SECONDS), own=replace(READY, busy=3)),
     (SHARED, Why.DEMOTED)),
]  # fmt: skip


@pytest.mark.parametrize(("case", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_row(case: TenantCase, expected: tuple[Stage, Why] | None) -> None:
    status = decide(case).status
    assert (None if status is None else (Stage(status.stage), Why(status.reason))) == expected
    if status is not None and case.status is not None and (status.stage, status.reason) == (
        case.status.stage, case.status.reason,
    ):  # fmt: skip
        assert status is case.status, "what stands is not written again"


def test_every_edge_of_the_table_is_walked_by_a_row() -> None:
    walked = {(case.status.stage if case.status else "Shared", end[0].value) for _, case, end in ROWS if end}
    assert {(stage.value, end.value) for (stage, _), end in TABLE.items()} <= walked


def test_one_adapter_is_merged_several_get_a_private_set() -> None:
    waited = at(SHARED, Why.ABOVE_THRESHOLD, 900)
    merged = decide(tenant(share=0.8, status=waited))
    assert merged.status is not None
    assert (merged.status.set, merged.status.version, merged.status.source) == (MERGED, VERSION, SOURCE)
    for case in (
        tenant(share=0.79, status=waited),
        tenant(top="base", status=waited),
        tenant(isolated=True, status=waited),
    ):
        private = decide(case).status
        assert private is not None
        assert (private.set, private.version) == (PRIVATE, None)


def test_disabled_means_that_loads_promote_nobody() -> None:
    off = replace(RULES, enabled=False)
    assert decide(tenant(status=at(SHARED, Why.ABOVE_THRESHOLD, 950)), off).replicas == 0
    gone = decide(tenant(status=at(DEDICATED, Why.SERVING), own=READY), off).status
    assert gone is not None
    assert (gone.stage, gone.reason) == ("Draining", "NotWanted")
    assert decide(tenant(0.0, isolated=True), off).replicas == 1


def test_messages_tell_the_numbers() -> None:
    told = decide(tenant(1.7, status=at(SHARED, Why.ABOVE_THRESHOLD, 900)))
    assert told.status is not None
    assert told.replicas == 2
    assert told.status.message == (
        "its load is 170% of what one replica of the base carries, promoted from 60%: it needs 2 of its own, "
        "the shared set could give back 1"
    )
    failed = decide(tenant(status=at(CHECKING, Why.MERGING), own=replace(READY, parity=BAD))).status
    assert failed is not None
    assert "1.60e-03 merged and 1.00e-03 unmerged (allowed 1.5 times that) at 160 positions" in failed.message
    assert failed.set == MERGED, "it is still there while it drains"


def test_without_room_nothing_starts_and_the_message_says_so() -> None:
    waited = tenant(1.7, status=at(SHARED, Why.ABOVE_THRESHOLD, 900))
    for dedicated, spare in ((1, 9), (9, 1), (0, 0), (2, -3)):
        found = decide(waited, dedicated=dedicated, spare=spare)
        assert found.status is not None
        assert (found.replicas, found.status.stage, found.status.reason) == (0, "Shared", "NoRoom")
        assert "promotion.maxDedicated and replicas.max leave" in found.status.message
    there = decide(tenant(1.7, status=at(SHARED, Why.NO_ROOM, 1)))
    assert there.replicas == 2, "it has waited long enough"


def test_sets_that_are_there_come_first_then_the_isolated_then_the_heavy() -> None:
    waited = at(SHARED, Why.ABOVE_THRESHOLD, 900)
    names = ("light", "heavy", "isolated", "standing")
    found = decide_promotions(
        [
            tenant(0.7, key="light", uid="l", status=waited),
            tenant(0.9, key="heavy", uid="h", status=waited),
            tenant(0.0, key="isolated", uid="i", isolated=True, created="2027-01-01T00:00:00Z"),
            tenant(0.1, key="standing", uid="s", status=at(DEDICATED, Why.BELOW_THRESHOLD), own=READY),
        ],
        RULES,
        Budget(3, 9, lambda _: 0),
        NOW,
    )
    held = {each.case.key: each.replicas for each in found}
    assert [held[name] for name in names] == [0, 1, 1, 1]


def test_a_smaller_budget_takes_the_lightest_sets_back() -> None:
    sets = [
        tenant(0.9, key="heavy", uid="h", status=at(DEDICATED, Why.SERVING), own=READY),
        tenant(0.7, key="light", uid="l", status=at(DEDICATED, Why.SERVING), own=READY),
        tenant(0.0, key="gone", uid="g", status=at(DRAINING, Why.DEMOTED), own=READY),
    ]
    found = decide_promotions(sets, RULES, Budget(2, 0, lambda _: 0), NOW)
    stages = {each.case.key: each.status.stage for each in found if each.status}
    assert stages == {"heavy": "Dedicated", "light": "Draining", "gone": "Draining"}


def test_a_set_follows_its_load_as_far_as_there_is_room() -> None:
    grown = tenant(2.0, status=at(DEDICATED, Why.SERVING), own=READY)
    assert decide(grown, dedicated=4).replicas == 3
    assert decide(grown, dedicated=2).replicas == 2
    assert decide(grown, dedicated=4, spare=0).replicas == 1
    big = replace(grown, own=replace(READY, wanted=3))
    assert decide(replace(big, load=1.6), dedicated=4).replicas == 3
    assert decide(replace(big, load=1.4), dedicated=4).replicas == 2
    assert [replicas_for(load) for load in (0.0, 0.9, 0.91, 1.8)] == [1, 1, 2, 2]


def test_gateways_are_sent_there_only_between_cut_over_and_cut_back() -> None:
    assert routed_set(None) is None
    assert [routed_set(at(stage, Why.LOAD)) for stage in Stage] == [None, None, None, MERGED, MERGED, None]
    assert [set_of(at(stage, Why.LOAD)) for stage in Stage] == [None, *[MERGED] * 5]


@pytest.mark.parametrize(
    ("status", "wait"),
    [
        (None, None),
        (at(SHARED, Why.ABOVE_THRESHOLD), 900.0),
        (at(DEDICATED, Why.BELOW_THRESHOLD), 1800.0),
        (at(DEDICATED, Why.SET_LOST), LOST_SECONDS),
        (at(DEDICATED, Why.SERVING), None),
        (at(CUTTING, Why.WARM), SETTLE_SECONDS),
        (at(DRAINING, Why.DEMOTED), SETTLE_SECONDS),
        (at(DRAINING, Why.DEMOTED, 60), DRAIN_SECONDS - 60),
        (at(WARMING, Why.LOAD), WARM_SECONDS),
        (at(SHARED, Why.PARITY_FAILED), RETRY_SECONDS[Why.PARITY_FAILED]),
    ],
)
def test_the_next_look_is_when_time_alone_may_move_it(status: PromotionStatus | None, wait: float | None) -> None:
    assert next_moment([Promoted(tenant(), status)], RULES, NOW) == (None if wait is None else NOW + wait)


loads = st.floats(0, 4)
owns = st.builds(
    Own, wanted=st.integers(0, 3), heard=st.integers(0, 3), usable=st.integers(0, 3), warm=st.integers(0, 3),
    busy=st.integers(0, 2), parity=st.sampled_from([None, GOOD, BAD]), parity_failed=st.booleans(),
)  # fmt: skip


@settings(max_examples=cases(60), deadline=None)
@given(st.data(), st.integers(0, 4), st.integers(0, 6))
def test_law_one_set_a_tenant_and_never_beyond_the_budget(data: st.DataObject, dedicated: int, most: int) -> None:
    found = [tenant(0.0, key=f"t{n}", uid=f"t{n}", isolated=data.draw(st.booleans())) for n in range(4)]
    now = NOW
    for _ in range(data.draw(st.integers(1, 25))):
        now += data.draw(st.sampled_from([1.0, 60.0, 1000.0, 2000.0]))
        held = sum(each.own.wanted or 1 for each in found if set_of(each.status))
        decided = decide_promotions(found, RULES, Budget(dedicated, most - held, lambda _: 0), now)
        assert len(decided) == len(found)
        grown = sum(each.replicas for each in decided)
        assert grown <= max(min(dedicated, most), held), "nothing is taken that is not there"
        for each in decided:
            assert (each.replicas > 0) == (set_of(each.status) is not None)
            before, after = set_of(each.case.status), set_of(each.status)
            assert before is None or after in (before, None), "from one set to another only over the shared one"
            if each.status and each.case.status and each.status is not each.case.status:
                assert parse_timestamp(each.status.since) == int(now)
        found = [
            replace(
                each.case,
                status=each.status,
                load=data.draw(loads),
                isolated=data.draw(st.booleans()) if data.draw(st.integers(0, 9)) == 0 else each.case.isolated,
                own=replace(data.draw(owns), wanted=each.replicas),
            )
            for each in decided
        ]


@settings(max_examples=cases(60), deadline=None)
@given(st.sampled_from(list(Stage)), st.sampled_from(list(Why)), owns, st.booleans())
def test_law_every_stage_ends(stage: Stage, why: Why, own: Own, isolated: bool) -> None:
    """With engines that never change and a tenant that nobody uses any more all ends up on the shared set or, where it
    is isolated and its set serves, on its own."""
    mine = {} if stage is Stage.SHARED else {"set": PRIVATE, "version": None}
    case = tenant(0.0, isolated=isolated, status=at(stage, why, **mine), own=own)
    seen = []
    now = NOW
    for _ in range(12):
        now += WARM_SECONDS + 1
        [promoted] = decide_promotions([case], RULES, Budget(4, 4, lambda _: 0), now)
        assert promoted.status is not None
        seen.append(Stage(promoted.status.stage))
        case = replace(case, status=promoted.status)
    last = seen[-1]
    if isolated:
        assert last is not Stage.CUTTING_OVER
        assert len(set(seen[-8:])) > 1 or last in (Stage.DEDICATED, Stage.SHARED), "it moves on, or is where it belongs"
    else:
        assert last is Stage.SHARED
