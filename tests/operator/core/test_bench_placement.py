"""The simulation behind `make bench-placement` lets adapters make way as the engine does."""

from collections import Counter

from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from e2e.placement.arms import ARMS, Ours, most_in_an_hour
from e2e.placement.replica import Replica, worth
from e2e.placement.run import run
from e2e.placement.trace import Setting, make_trace
from lorafleet_engine.loader.eviction import Held, Usage, choose_victims

uses = st.lists(st.floats(0, 5000), min_size=1, max_size=5)


@limits(max_examples=100, deadline=None)
@given(st.lists(st.tuples(uses, st.integers(1, 10**9)), min_size=1, max_size=8))
def test_worth_sorts_as_the_engine_does(versions: list[tuple[list[float], int]]) -> None:
    held = []
    for number, (moments, size) in enumerate(versions):
        usage = Usage(0, 0)
        for moment in sorted(moments):
            usage = usage.used(moment)
        held.append(Held(f"{number}", size, usage))
    [victim] = choose_victims(held, 1, 5000.0)
    least = min(worth(each.usage, each.bytes) for each in held)
    assert worth(held[int(victim)].usage, held[int(victim)].bytes) <= least + 1e-9


def test_a_replica_keeps_what_is_used_most_for_its_bytes_and_never_what_is_in_use() -> None:
    sizes = [10, 10, 10, 30]
    replica = Replica(30)
    replica.size_of = sizes.__getitem__

    def ask(adapter: int, now: float, end: bool = True) -> bool:
        cold = replica.begin(adapter, sizes[adapter], now)
        if end:
            replica.end(adapter)
        return cold

    assert [ask(each, each) for each in (0, 1, 2)] == [True] * 3
    assert [ask(each, 3.0) for each in (0, 2)] == [False] * 2
    assert ask(0, 4.0, end=False) is False
    assert ask(3, 5.0) is True, "it does not fit while 0 is in use"
    assert ask(3, 6.0) is True
    assert ask(0, 7.0) is False
    replica.end(0)
    assert [ask(3, 8.0), ask(3, 9.0)] == [True, False]
    assert replica.outstanding == 0


def test_an_arm_s_run_counts_what_happens() -> None:
    setting = Setting(1.0, adapters=40, replicas=4, rps=10.0, warm=600.0, measured=600.0)
    trace = make_trace(setting)
    outcomes = {}
    for name, build in ARMS.items():
        arm = build(trace, setting)
        outcomes[name] = run(arm, trace, setting)
        if isinstance(arm, Ours):
            assert 0 < most_in_an_hour(arm.moves) == len(arm.moves) <= 20, "one a minute at most"
            assert arm.plan(Counter(), setting.seconds) == []
    assert len({each.requests for each in outcomes.values()}) == 1
    assert outcomes["ours"].peak_load_ratio < outcomes["hash"].peak_load_ratio
    assert outcomes["ours"].cold_loads < outcomes["all"].cold_loads


def test_moves_are_counted_in_the_worst_hour() -> None:
    assert most_in_an_hour([]) == 0
    assert most_in_an_hour([0.0, 1800.0, 3599.0, 3600.0, 9000.0]) == 3
