"""What a pool's task keeps of load, capacity and needs between its plans."""

from dataclasses import replace

import pytest

from lorafleet_contracts.admin import UsageState
from lorafleet_contracts.resources.adapter import LoraAdapterStatus, PopularityStatus
from lorafleet_contracts.resources.pool import CapacityStatus, LoraPoolStatus
from lorafleet_operator.core.actions import Plan
from lorafleet_operator.core.snapshot import PoolSnapshot
from lorafleet_operator.shell.load import FOLD_SECONDS, LoadMeter
from tests.support.fleet import NOW, make_adapter, make_pool, make_replica, make_snapshot, make_state


class Clock:
    """A steady clock that a test moves; its zero is nobody's epoch."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def serving(requests: int, waiting: int = 0) -> PoolSnapshot:
    """A pool whose only replica has done so many requests for its only adapter."""
    row = UsageState(tenant="demo/acme", adapter="uid-demo-pirate@d", gateway="g", requests=requests)
    state = make_state(usage=[row], seq=requests + 1, queue=waiting)
    return make_snapshot(adapters=(make_adapter("pirate"),), replicas=(make_replica(0, state),))


def test_the_load_is_folded_between_plans_and_not_more_often_than_need_be() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    assert meter.measure(serving(100), NOW).load.adapters == {}
    clock.now += FOLD_SECONDS / 2
    assert meter.measure(serving(200), NOW).load.adapters == {}
    clock.now += 10
    assert meter.measure(serving(200), NOW).load.adapters["uid-demo-pirate"].requests_per_s.fast > 2


def test_a_new_process_begins_with_what_statuses_say() -> None:
    told = LoraAdapterStatus(popularity=PopularityStatus(requests=12, tokens=20))
    capacity = CapacityStatus(value="3", source="Measured")
    snapshot = serving(100)
    [adapter] = snapshot.adapters
    snapshot = replace(
        snapshot,
        adapters=(replace(adapter, status=told),),
        pool=make_pool(status=LoraPoolStatus(capacity=capacity)),
    )
    seen = LoadMeter(Clock()).measure(snapshot, NOW)
    assert seen.load.adapters["uid-demo-pirate"].requests_per_s.slow == pytest.approx(2**12 / 3600)
    assert seen.capacity is not None
    assert (seen.capacity.measured, seen.capacity.requests_per_s) == (True, 3.0)


def test_a_replica_at_its_limit_shows_what_one_can_do() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    for second in range(40):
        seen = meter.measure(serving(4 * second, waiting=2), NOW)
        clock.now += 1
    assert seen.capacity is not None
    assert seen.capacity.measured
    assert seen.capacity.requests_per_s == pytest.approx(4 * 0.95)


def test_needs_and_news_of_popularity_are_told_in_the_time_of_plans() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    meter.note(Plan(needs={"shared": 3}, tells_popularity=True))
    clock.now += 60
    seen = meter.measure(serving(0), NOW)
    assert seen.needs["shared"].peaks == ((NOW - 60, 3),)
    assert meter.told_at(NOW) == NOW - 60
    meter.note(Plan())
    assert meter.measure(serving(0), NOW).needs == {}
    assert meter.told_at(NOW) == NOW - 60


def test_a_pool_that_cannot_be_read_has_load_all_the_same() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    broken = replace(serving(0), pool=replace(make_pool(), spec=None, invalid="no"))
    meter.measure(broken, NOW)
    clock.now += 10
    assert meter.measure(replace(serving(50), pool=broken.pool), NOW).load.total.requests_per_s.fast > 0
