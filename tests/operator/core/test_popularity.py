"""The engines' counters as rates, whatever happens to engines and operator in between."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorafleet_contracts.admin import UsageState
from lorafleet_contracts.resources.adapter import LoraAdapterStatus, PopularityStatus
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.popularity import (
    FAST_SECONDS,
    HOUR,
    Pace,
    Rates,
    Reading,
    Track,
    bucket,
    fold,
    warm,
    without,
)
from lorafleet_operator.core.snapshot import Memory
from lorafleet_operator.core.telling import TELL_SECONDS
from tests.support.fleet import NOW, make_adapter
from tests.support.plans import change_adapter, ready_snapshot, status_of

DIGEST = "sha256:00"


def row(
    requests: int, tokens: int = 0, adapter: str = f"pirate@{DIGEST}", tenant: str = "demo/acme", gateway: str = "g0"
) -> UsageState:
    """One usage row; the tokens are those of answers."""
    return UsageState(tenant=tenant, adapter=adapter, gateway=gateway, requests=requests, completion_tokens=tokens)


def read(seq: int, *rows: UsageState, replica: str = "r0", boot: str = "b0") -> Reading:
    """One replica's answer."""
    return Reading(replica, boot, seq, rows)


def steady(track: Track, each: int, seconds: float, begin: float = 0.0, rate: int = 2) -> Track:
    """`rate` requests a second of 10 tokens, looked at every `seconds`, `each` times."""
    for number in range(each + 1):
        done = int(rate * seconds * number)
        track = fold(track, [read(number + 1, row(done, 10 * done))], begin + seconds * number)
    return track


def test_a_steady_load_is_found_for_adapter_tenant_replica_and_pool() -> None:
    track = steady(Track(), 60, 10.0)
    for rates in (track.adapters["pirate"], track.tenants["demo/acme"]["pirate"], track.replicas["r0"], track.total):
        assert rates.requests_per_s.fast == pytest.approx(2, rel=1e-6)
        assert rates.tokens_per_s.fast == pytest.approx(20, rel=1e-6)
        assert rates.requests_per_s.slow == pytest.approx(2 * (1 - math.exp(-1)), rel=1e-6)


def test_what_some_tenants_ask_for_can_be_taken_out() -> None:
    rows = [row(0), row(0, tenant="demo/globex"), row(0, tenant="demo/globex", adapter=f"poet@{DIGEST}")]
    track = fold(Track(), [read(1, *rows)], 0.0)
    more = [each.model_copy(update={"requests": 10 * (place + 1)}) for place, each in enumerate(rows)]
    track = fold(track, [read(2, *more)], 10.0)
    left = without(track, ["demo/globex", "demo/nobody"])
    mine, theirs = left.adapters["pirate"].requests_per_s, track.tenants["demo/acme"]["pirate"].requests_per_s
    assert (mine.fast, mine.slow) == pytest.approx((theirs.fast, theirs.slow))
    assert left.adapters["poet"].requests_per_s == Pace()
    assert left.total.requests_per_s.slow == pytest.approx(track.total.requests_per_s.slow / 6)
    assert (left.tenants, left.replicas) == (track.tenants, track.replicas)
    assert without(track, []) is track


def test_how_often_it_is_looked_at_does_not_matter() -> None:
    seldom, often = steady(Track(), 3, 40.0), steady(Track(), 120, 1.0)
    assert often.adapters["pirate"].requests_per_s.fast == pytest.approx(seldom.adapters["pirate"].requests_per_s.fast)
    assert often.total.tokens_per_s.slow == pytest.approx(seldom.total.tokens_per_s.slow)


def test_what_was_counted_before_the_first_look_is_no_load() -> None:
    track = fold(Track(), [read(5, row(1_000_000))], 100.0)
    assert track.adapters == {}
    assert fold(track, [read(6, row(1_000_000))], 110.0).total == Rates()


def test_a_new_boot_restarts_the_difference() -> None:
    track = fold(fold(Track(), [read(1, row(0))], 0.0), [read(2, row(100))], 10.0)
    reborn = fold(track, [read(1, row(7), boot="b1")], 20.0)
    assert reborn.total.requests_per_s.fast < track.total.requests_per_s.fast
    more = fold(reborn, [read(2, row(57), boot="b1")], 30.0)
    assert more.total.requests_per_s.fast == pytest.approx(
        reborn.total.requests_per_s.fast + (1 - math.exp(-10 / FAST_SECONDS)) * (5 - reborn.total.requests_per_s.fast)
    )


def test_a_replica_that_was_away_begins_anew() -> None:
    track = fold(Track(), [read(1, row(0))], 0.0)
    track = fold(track, [], 10.0)
    assert track.baselines == {}
    assert fold(track, [read(9, row(5000))], 20.0).total == Rates()


def test_rows_that_go_backwards_restart_and_new_rows_count_in_full() -> None:
    track = fold(Track(), [read(1, row(100, 100))], 0.0)
    track = fold(track, [read(2, row(3, 3), row(10, 0, tenant="demo/other"))], 10.0)
    assert set(track.tenants) == {"demo/other"}
    assert track.total.requests_per_s.fast == pytest.approx((1 - math.exp(-10 / FAST_SECONDS)) * 1.0)
    again = fold(track, [read(3, row(13, 3), row(10, 0, tenant="demo/other"))], 20.0)
    assert "demo/acme" in again.tenants


def test_gateways_and_versions_of_one_adapter_add_up() -> None:
    zeros = (row(0), row(0, gateway="g1"), row(0, adapter="pirate@sha256:11"), row(0, adapter="base"))
    rows = (row(1), row(2, gateway="g1"), row(3, adapter="pirate@sha256:11"), row(4, adapter="base"))
    track = fold(fold(Track(), [read(1, *zeros)], 0.0), [read(2, *rows)], 1.0)
    assert track.adapters["pirate"].requests_per_s.fast / track.adapters["base"].requests_per_s.fast == pytest.approx(
        1.5
    )


def test_a_clock_that_stands_still_changes_nothing() -> None:
    track = fold(fold(Track(), [read(1, row(0))], 0.0), [read(2, row(5))], 10.0)
    assert fold(track, [read(3, row(50))], 10.0) is track


def test_what_is_used_no_more_is_forgotten() -> None:
    track = fold(fold(Track(), [read(1, row(0))], 0.0), [read(2, row(1))], 10.0)
    assert track.adapters
    later = fold(track, [read(2, row(1))], 2 * HOUR)
    assert (later.adapters, later.tenants) == ({}, {})


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["b0", "b1"]), st.integers(0, 50),
            st.floats(0.1, 100, allow_nan=False), st.sampled_from(["x@d", "y@d", "base"]),
            st.sampled_from(["t/1", "t/2"]),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_rates_are_never_negative_and_all_views_have_one_sum(looks: list[tuple]) -> None:
    track, now = Track(), 0.0
    for seq, (replica, boot, count, seconds, adapter, tenant) in enumerate(looks):
        now += seconds
        rows = (row(count, 3 * count, adapter, tenant), row(seq, seq, "z@d", "t/3"))
        track = fold(track, [read(seq, *rows, replica=f"r{replica}", boot=boot)], now)
    each = list(track.adapters.values())
    split = [rates for tenant in track.tenants.values() for rates in tenant.values()]
    assert all(
        value >= 0 for rates in [*each, *split] for value in (rates.requests_per_s.fast, rates.tokens_per_s.slow)
    )
    for kind in ("requests_per_s", "tokens_per_s"):
        total = getattr(track.total, kind).slow
        assert sum(getattr(rates, kind).slow for rates in each) == pytest.approx(total, abs=1e-4)
        assert sum(getattr(rates, kind).slow for rates in split) == pytest.approx(total, abs=1e-4)


@given(st.floats(0, 1e6, allow_nan=False), st.integers(0, 63), st.integers(0, 63))
def test_a_bucket_is_about_true_and_stands_while_it_is(per_hour: float, requests: int, tokens: int) -> None:
    rates = Rates(Pace(0, per_hour / HOUR), Pace(0, 100 * per_hour / HOUR))
    shown = bucket(rates, None)
    assert bucket(rates, shown) == shown
    if shown is None:
        assert per_hour < 1
        return
    assert abs(shown.requests - math.log2(per_hour)) <= 0.5 + 1e-9
    before = PopularityStatus(requests=requests, tokens=tokens)
    assert bucket(rates, before) in (before, shown)
    assert bucket(Rates(), shown) is None


def test_a_restart_begins_with_what_statuses_say() -> None:
    known = steady(Track(), 360, 10.0)
    status = LoraAdapterStatus(popularity=bucket(known.adapters["pirate"], None))
    track = warm([("pirate", status), ("cold", LoraAdapterStatus())])
    assert set(track.adapters) == {"pirate"}
    assert track.total.requests_per_s.fast == pytest.approx(known.total.requests_per_s.fast, rel=0.5)
    first = fold(track, [read(99, row(1_000_000))], NOW)
    assert first.adapters == track.adapters
    assert bucket(first.adapters["pirate"], status.popularity) == status.popularity


def test_one_status_at_a_time_is_written_for_popularity_alone_the_hottest_first() -> None:
    snapshot = ready_snapshot(adapters=(make_adapter("pirate"), make_adapter("haiku")))
    assert not plan_pool(snapshot, NOW).statuses
    hot = Track(adapters={"uid-demo-pirate": Rates(Pace(0, 1.0)), "uid-demo-haiku": Rates(Pace(0, 8.0))})
    plan = plan_pool(replace(snapshot, load=hot), NOW)
    assert [each.name for each in plan.statuses] == ["haiku"]
    assert plan.tells_popularity
    told = status_of(plan, "haiku")
    assert told.popularity is not None
    assert told.popularity.requests == round(math.log2(8 * HOUR))
    [before] = [each.status for each in snapshot.adapters if each.meta.name == "haiku"]
    assert told.model_copy(update={"popularity": None}) == before
    soon = plan_pool(replace(snapshot, load=hot, memory=replace(snapshot.memory, popularity_told=NOW - 1)), NOW)
    assert (soon.statuses, soon.again_in) == ((), TELL_SECONDS - 1)


def test_a_verdict_takes_popularity_along() -> None:
    snapshot = change_adapter(ready_snapshot(), suspend=True)
    hot = Track(adapters={"uid-demo-pirate": Rates(Pace(0, 1.0))})
    plan = plan_pool(replace(snapshot, load=hot, memory=Memory(popularity_told=NOW)), NOW)
    told = status_of(plan, "pirate")
    assert told.popularity is not None
    assert not plan.tells_popularity
