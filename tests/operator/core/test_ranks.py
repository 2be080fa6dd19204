"""Rank classes: who belongs where, what steps would take, when a class gets replicas of its own."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_contracts.capacity import ModelShape, decode_adapter_seconds, rank_unit_parameters
from lorafleet_contracts.forecast import Forecast, Member, StepModel, forecast
from lorafleet_contracts.resources.pool import RankClassesStatus
from lorafleet_operator.core.ranks import (
    MERGE_MARGIN,
    QUIET_SECONDS,
    RankCase,
    class_of,
    decide_split,
    set_size,
)
from tests.support.fleet import NOW

QWEN = ModelShape(layers=28, hidden=3584, intermediate=18944, heads=28, kv_heads=4, head_dim=128, vocab=152064)
H200 = StepModel(4.56e-3, decode_adapter_seconds(1, 2 * rank_unit_parameters(QWEN), 4_300_000_000_000))
"""A 7B base on one H200: a decode step of the base, and 1.173 us for each unit of rank."""


LOW, HIGH = [Member(8, 200.0)] * 60, [Member(128, 800.0)] * 24


def make_case(**changes: object) -> RankCase:
    """Sixty busy adapters of rank 8 beside 24 of rank 128, on a pool of at most eight GPUs."""
    fields: dict[str, object] = {
        "ceilings": (16, 128),
        "auto": True,
        "members": {16: LOW, 128: HIGH},
        "work": {16: 1.2, 128: 0.9},
        "model": H200,
        "bound_seconds": 6e-3,
        "most": 8,
        "shared_min": 2,
        "redundancy": 1,
    }
    return RankCase(**{**fields, **changes})  # type: ignore[arg-type]


def run(case: RankCase, seconds: float, start: float = NOW) -> RankClassesStatus:
    """The status after so long of the same load, looked at every ten seconds."""
    for at in range(0, int(seconds) + 1, 10 if seconds < 1000 else 60):
        status = decide_split(case, start + at)
        assert status is not None
        case = replace(case, status=status)
    assert case.status is not None
    return case.status


@pytest.mark.parametrize(("rank", "ceiling"), [(1, 16), (16, 16), (17, 64), (64, 64), (65, None)])
def test_an_adapter_is_in_the_smallest_class_that_holds_it(rank: int, ceiling: int | None) -> None:
    assert class_of(rank, [64, 16]) == ceiling


def test_without_classes_nothing_is_decided() -> None:
    assert class_of(8, []) is None
    assert decide_split(make_case(ceilings=()), NOW) is None


def test_a_unit_of_rank_costs_what_the_design_says() -> None:
    assert pytest.approx(1.173e-6, rel=1e-3) == H200.seconds_per_rank


def test_what_decodes_all_the_time_is_in_every_step() -> None:
    busy = [Member(8, 1e6)] * 10
    assert forecast(busy, 1, H200) == Forecast(80.0, pytest.approx(4.56e-3 + 80 * H200.seconds_per_rank))
    assert forecast([], 1, H200) == Forecast(0.0, 4.56e-3)
    assert forecast(busy, 0, H200).rank_sum == 0


def test_a_rare_adapter_counts_by_how_often_it_is_there() -> None:
    found = forecast([Member(128, 20.0)], 1, H200)
    assert found.rank_sum == pytest.approx(128 * 20 * 4.6e-3, rel=0.1)
    assert found.itl_p99 == pytest.approx(4.56e-3 + H200.seconds_per_rank * 128, rel=0.02), "no more than all of it"


def test_copies_share_the_load_and_replicas_the_ranks() -> None:
    one, two = forecast([Member(64, 1e6, copies=1)], 2, H200), forecast([Member(64, 1e6, copies=2)], 2, H200)
    assert one.rank_sum == pytest.approx(32)
    assert two.rank_sum == pytest.approx(64)
    assert forecast([Member(64, 1e6, copies=9)], 2, H200) == two


def test_the_trace_where_auto_splits() -> None:
    case = make_case()
    early = run(case, 290)
    assert (early.split, early.wanted, early.reason) == ([], [128], "SplitPays")
    status = run(case, 310)
    assert (status.split, status.wanted, status.reason) == ([128], [128], "SplitPays")
    mixed = forecast([*case.members[16], *case.members[128]], 4, H200).itl_p99
    alone = forecast(case.members[16], 3, H200).itl_p99
    assert mixed > case.bound_seconds > alone
    assert status.message == (
        f"on one set the forecast is {mixed * 1e3:.2f} ms between tokens (p99) at a mean rank sum of 839 a step; "
        f"slo.itl is 6.00 ms; a set for class 128 brings it to {alone * 1e3:.2f} ms for +1 replicas: 5 of at most 8"
    )


def test_the_trace_where_auto_declines_because_it_costs_too_much() -> None:
    status = run(make_case(most=4), 3600)
    assert (status.split, status.wanted, status.reason) == ([], [], "NoRoom")
    assert "takes 5 replicas in all, of which replicas.max allows 4" in status.message


def test_it_declines_when_the_low_class_would_not_be_helped() -> None:
    status = run(make_case(bound_seconds=4e-3), 3600)
    assert (status.split, status.reason) == ([], "WouldNotHelp")
    assert "a split would not help" in status.message


def test_it_leaves_well_alone() -> None:
    status = run(make_case(bound_seconds=30e-3), 3600)
    assert (status.split, status.wanted, status.reason) == ([], [], "WithinBound")


def test_never_and_unknown() -> None:
    assert run(make_case(auto=False), 3600).reason == "Never"
    assert run(make_case(model=None), 3600).reason == "NotMeasured"
    split = run(make_case(), 400)
    assert run(make_case(status=split, model=None), 3600, NOW + 400).split == [128], "no news is no reason to merge"
    assert run(make_case(status=split, auto=False), 0, NOW + 400).split == []


def test_a_split_class_comes_back_only_when_it_is_clearly_not_needed() -> None:
    split = run(make_case(), 400)
    mixed = forecast(LOW + HIGH, 4, H200).itl_p99
    base = H200.base_seconds
    near = make_case(status=split, bound_seconds=base + (mixed - base) / MERGE_MARGIN * 0.99)
    assert run(near, 7200, NOW + 400).split == [128]
    far = make_case(status=split, bound_seconds=base + (mixed - base) / MERGE_MARGIN * 1.01)
    assert run(far, 1740, NOW + 400).split == [128]
    assert run(far, 1860, NOW + 400).split == []


def test_a_short_peak_changes_nothing() -> None:
    calm = make_case(bound_seconds=30e-3)
    status = run(replace(make_case(), status=run(calm, 0)), 250)
    assert status.wanted == [128]
    status = run(replace(calm, status=status), 100, NOW + 250)
    assert (status.split, status.wanted) == ([], [])


def test_only_as_many_classes_as_it_takes_are_split_off() -> None:
    members = {16: LOW, 64: [Member(64, 50.0)] * 4, 128: HIGH}
    case = make_case(ceilings=(16, 64, 128, 256), members=members, work={16: 1.2, 64: 0.1, 128: 0.9})
    assert run(case, 400).split == [128]
    tight = replace(case, bound_seconds=forecast(members[16], 3, H200).itl_p99 * 1.001)
    assert run(tight, 400).split == [64, 128], "class 256 has no adapters"


def test_a_class_that_the_spec_no_longer_has_is_dropped_at_once() -> None:
    split = run(make_case(), 400)
    status = decide_split(make_case(ceilings=(16,), status=split), NOW + 400)
    assert status is not None
    assert status.split == []


def test_a_status_stands_until_something_else_is_decided() -> None:
    first = decide_split(make_case(bound_seconds=30e-3), NOW)
    assert first is not None
    quieter = make_case(bound_seconds=30e-3, status=first, members={16: [Member(8, 1.0)]})
    assert decide_split(quieter, NOW + 10) is first, "other numbers are no news"
    other = make_case(bound_seconds=30e-3, status=first, model=None)
    assert decide_split(other, NOW + QUIET_SECONDS - 1) is first
    assert decide_split(other, NOW + QUIET_SECONDS) is not first


@pytest.mark.parametrize(
    ("work", "redundancy", "least", "size"),
    [(0.0, 0, 1, 1), (0.0, 1, 1, 2), (1.0, 1, 2, 2), (1.01, 1, 2, 3), (0.1, 1, 4, 4)],
)
def test_sizes(work: float, redundancy: int, least: int, size: int) -> None:
    assert set_size(work, redundancy, least) == size


members = st.lists(
    st.builds(Member, st.sampled_from([8, 16, 64, 128]), st.floats(0, 5000), st.integers(1, 4)), max_size=20
)


@given(members, st.integers(1, 6))
def test_law_a_forecast_lies_between_the_base_and_all_ranks_at_once(found: list[Member], replicas: int) -> None:
    seen = forecast(found, replicas, H200)
    most = sum(each.rank for each in found)
    assert H200.base_seconds <= seen.itl_p99 <= H200.base_seconds + H200.seconds_per_rank * most + 1e-12
    assert 0 <= seen.rank_sum <= most + 1e-9


@settings(deadline=None, max_examples=40)
@given(
    st.fixed_dictionaries({16: members, 64: members, 128: members}),
    st.floats(1e-3, 2e-2),
    st.integers(1, 12),
    st.floats(0, 4),
)
def test_law_a_split_is_within_the_limit_and_settles(
    found: dict[int, list[Member]], bound: float, most: int, work: float
) -> None:
    case = make_case(
        ceilings=(16, 64, 128), members=found, work=dict.fromkeys(found, work), bound_seconds=bound, most=most
    )
    status = run(case, 2500)
    sizes = [set_size(work, 1) for _ in status.split]
    rest = [each for each in found if each not in status.split and found[each]]
    if status.split:
        assert set_size(work * len(rest), 1, 2) + sum(sizes) <= most
    assert run(replace(case, status=status), 4000, NOW + 2500).split == status.split
