"""Drives one arm through a trace. Called by __main__."""

import heapq
from collections import Counter
from dataclasses import dataclass, field

from e2e.placement.arms import PLAN_SECONDS, Arm
from e2e.placement.replica import Replica
from e2e.placement.trace import Setting, Trace

SLICE_SECONDS = 600.0
HOUR = 3600.0


@dataclass(slots=True)
class Outcome:
    """Requests and cold loads of the measured part, the busiest replica's requests in its worst hour over the mean, and
    shares by slices of the whole run."""

    requests: int = 0
    cold_loads: int = 0
    peak_load_ratio: float = 0.0
    cold_share: list[float] = field(default_factory=list)
    load_ratio: list[float] = field(default_factory=list)


def run(arm: Arm, trace: Trace, setting: Setting) -> Outcome:
    """Route every request to the least busy of its adapter's holders."""
    replicas = [Replica(trace.budget) for _ in range(setting.replicas)]
    for each in replicas:
        each.size_of = trace.sizes.__getitem__
    ends: list[tuple[float, int, int]] = []
    asked: Counter[int] = Counter()
    meter = _Meter(setting)
    plan_at = PLAN_SECONDS
    for now, adapter, service in zip(trace.times, trace.adapters, trace.services, strict=True):
        while plan_at <= now:
            for left, where in arm.plan(asked, plan_at):
                replicas[where].drop(left, trace.sizes[left])
            asked.clear()
            plan_at += PLAN_SECONDS
        while ends and ends[0][0] <= now:
            _, where, done = heapq.heappop(ends)
            replicas[where].end(done)
        asked[adapter] += 1
        holders = arm.holders[adapter]
        where = holders[0]
        if len(holders) > 1:
            where = min(holders, key=lambda each: (replicas[each].outstanding, replicas[each].served, each))
        cold = replicas[where].begin(adapter, trace.sizes[adapter], now)
        heapq.heappush(ends, (now + service, where, adapter))
        meter.count(now, where, cold)
    return meter.outcome()


class _Meter:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._slices: list[list[int]] = []
        self._cold: list[int] = []

    def count(self, now: float, replica: int, cold: bool) -> None:
        place = int(now / SLICE_SECONDS)
        while len(self._slices) <= place:
            self._slices.append([0] * self._setting.replicas)
            self._cold.append(0)
        self._slices[place][replica] += 1
        self._cold[place] += cold

    def outcome(self) -> Outcome:
        first = int(self._setting.warm / SLICE_SECONDS)
        measured = self._slices[first:]
        hour = int(HOUR / SLICE_SECONDS)
        hours = [measured[begin : begin + hour] for begin in range(0, len(measured), hour)]
        return Outcome(
            requests=sum(map(sum, measured)),
            cold_loads=sum(self._cold[first:]),
            peak_load_ratio=max(_ratio([sum(each) for each in zip(*slices, strict=True)]) for slices in hours),
            cold_share=[cold / sum(each) for cold, each in zip(self._cold, self._slices, strict=True)],
            load_ratio=[_ratio(each) for each in self._slices],
        )


def _ratio(loads: list[int]) -> float:
    return max(loads) * len(loads) / sum(loads)
