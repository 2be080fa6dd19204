"""While tenants compete a step is planned just before the device needs it. The device of these tests is a clock's: its
steps take as long as they say, and the loop's planning takes some time, too."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from lorafleet_engine.loop import EngineLoop
from lorafleet_engine.messages import Generate, StepLimits, ToLoop
from lorafleet_engine.runner.sampler import Draw, Sampled
from lorafleet_engine.scheduler.sequence import StepPlan
from lorafleet_engine.steps import StepTimes
from tests.engine.loop.conftest import Ask
from tests.engine.support.driver import ListMailbox, LoopDriver

STEP_S = 0.020


class Clock:
    """Seconds that pass where somebody waits."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Mailbox(ListMailbox):
    """Requests that come at their time; waiting for them makes time pass."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.coming: list[tuple[float, Generate]] = []

    def receive(self, wait_s: float) -> list[ToLoop]:
        until = self.clock.now + wait_s
        self.clock.now = max(self.clock.now, min([at for at, _ in self.coming if at < until], default=until))
        self.inbox += [request for at, request in self.coming if at <= self.clock.now]
        self.coming = [(at, request) for at, request in self.coming if at > self.clock.now]
        return super().receive(wait_s)


class OnDevice:
    """A step's tokens, which are there when the device has ended it."""

    def __init__(self, sampled: Sampled, clock: Clock, end: float) -> None:
        self.sampled, self.clock, self.end = sampled, clock, end

    @property
    def ended(self) -> bool:
        return self.clock.now >= self.end

    def wait(self) -> Any:
        self.clock.now = max(self.clock.now, self.end)
        return self.sampled.wait()


class Device:
    """Runs the steps one after another; `steps` are (when it began, who was in it), `idle` the seconds in between."""

    def __init__(self, driver: LoopDriver, clock: Clock, planning_s: float) -> None:
        self.clock, self.free = clock, 0.0
        self.idle = 0.0
        self.steps: list[tuple[float, frozenset[str]]] = []
        self.hiccup = 0.0
        launch = driver.core.runner.launch

        def launched(plan: StepPlan, draws: Mapping[int, Draw]) -> OnDevice:
            clock.now += planning_s
            begin = max(clock.now, self.free)
            self.idle += begin - self.free
            self.free, self.hiccup = begin + STEP_S + self.hiccup, 0.0
            self.steps.append((begin, frozenset(work.sequence.request_id for work in plan.works)))
            return OnDevice(launch(plan, draws), clock, self.free)

        driver.core.runner.launch = launched  # type: ignore[method-assign, assignment]


@pytest.fixture(params=[0.002, 0.007])
def timed(start: Callable[..., LoopDriver], request: pytest.FixtureRequest) -> tuple[EngineLoop, Mailbox, Device]:
    """With planning that takes less than is provided for it, and more."""
    driver = start(limits=StepLimits(tokens=64, sequences=32, contended=8))
    clock = Clock()
    mailbox, device = Mailbox(clock), Device(driver, clock, request.param)
    return EngineLoop(driver.core, mailbox, 0, clock, overlapped=True), mailbox, device


def flood(ask: Ask) -> list[Generate]:
    """More of one tenant than there is room for, and one of another."""
    heavy = [replace(ask(f"h{number}", None, tuple(range(16)), max_tokens=100), tenant="heavy") for number in range(24)]
    return [*heavy, replace(ask("other", None, tuple(range(16)), max_tokens=100), tenant="other")]


def test_whoever_comes_is_in_the_next_step_and_the_device_is_never_idle(
    timed: tuple[EngineLoop, Mailbox, Device], ask: Ask
) -> None:
    loop, mailbox, device = timed
    mailbox.inbox += flood(ask)
    while len(device.steps) < 30:
        loop.turn()
    device.hiccup = 0.3  # one step takes sixteen times as long: what is expected of the others stays what it was
    while len(device.steps) < 60:
        loop.turn()
    idle, begin = device.idle, device.steps[-1][0]
    mailbox.coming = [(begin + STEP_S / 4, replace(ask("late", None, (1, 2, 3), max_tokens=2), tenant="late"))]
    while len(device.steps) < 62:
        loop.turn()
    assert "late" not in device.steps[59][1]
    assert "late" in device.steps[60][1]
    while len(device.steps) < 100:
        loop.turn()
    assert device.idle - idle < 0.05 * 40 * STEP_S


def test_alone_the_next_step_is_launched_at_once(timed: tuple[EngineLoop, Mailbox, Device], ask: Ask) -> None:
    loop, mailbox, device = timed
    mailbox.inbox += [ask(f"r{number}", None, (1, 2, 3), max_tokens=30) for number in range(4)]
    while len(device.steps) < 20:
        loop.turn()
        assert mailbox.clock.now <= device.free
    assert device.idle < 0.01


def test_what_a_step_is_expected_to_take() -> None:
    plan = StepPlan((), 0, ())
    times = StepTimes()
    assert times.expected(plan) == 0
    times.learn(0.02, plan, late=False)
    times.learn(0.5, plan, late=False)
    assert times.expected(plan) == pytest.approx(0.021)
    times.learn(0.5, plan, late=True)
    assert times.expected(plan) < 0.02
    times.learn(0.02, plan, late=False)
    assert times.expected(plan) == pytest.approx(0.02, rel=0.02)
