"""Laws between tenants: equal service over weight while both wait, no credit from idling, nobody waits for ever."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lorafleet_engine.messages import StepLimits
from lorafleet_engine.scheduler.fairness import Tenant, Tenants, share_out
from lorafleet_engine.scheduler.sequence import Sequence
from tests.engine.support.simulation import Simulation, simulation
from tests.support.cases import cases

LONGEST = 96
STEP = 32
LIMITS = StepLimits(tokens=STEP, sequences=8, distinct_adapters=64, rank_sum=4096, waiting=1000)


class Clients:
    """Tenants that always have more requests queued than a batch takes."""

    def __init__(self, world: Simulation, menus: dict[str, list[tuple[int, int]]]) -> None:
        self.world, self.menus = world, menus
        self.asked: Counter[str] = Counter()

    def top_up(self, *tenants: str) -> None:
        queued = Counter(sequence.tenant for sequence in self.world.scheduler.waiting)
        for tenant in tenants:
            for _ in range(LIMITS.sequences + 1 - queued[tenant]):
                prompt, answer = self.menus[tenant][self.asked[tenant] % len(self.menus[tenant])]
                self.asked[tenant] += 1
                name = f"{tenant}{self.asked[tenant]}"
                self.world.submit(Sequence(name, [1] * prompt, min(answer, LONGEST - prompt), tenant=tenant))


def charge(weights: dict[str, float]) -> float:
    """The largest charge: a whole sequence computed anew, and what a step may add before anything can be done."""
    return (LONGEST + 2 * STEP) / min(weights.values())


MENUS = st.lists(st.tuples(st.sampled_from([1, 5, 30, LONGEST - 1]), st.integers(1, LONGEST)), min_size=1, max_size=5)
"""Prompts and answers that a tenant asks for, over and over."""


@pytest.mark.heavy
@settings(max_examples=cases(40), deadline=None)
@example({"a": [(95, 1)], "b": [(1, 1)]}, 1.0, 24, False, "", 1)
@example(
    {
        "a": [(1, 33), (1, 80), (95, 45), (30, 61), (30, 44)],
        "b": [(1, 33), (1, 80), (95, 45), (30, 61), (30, 61)],
    },
    1.0,
    14,
    True,
    "tenant",
    60,
)
@given(
    st.fixed_dictionaries({"a": MENUS, "b": MENUS}),
    st.sampled_from([1.0, 2.0, 5.0]),
    st.integers(12, 80),
    st.booleans(),
    st.sampled_from(["", "tenant"]),
    st.integers(0, 60),
)
def test_backlogged_tenants_differ_by_at_most_two_charges(
    menus: dict[str, list[tuple[int, int]]], weight: float, pages: int, overlapped: bool, prefix: str, alone: int
) -> None:
    weights = {"a": weight, "b": 1.0}
    world = simulation(pages, LIMITS, overlapped=overlapped, weights=weights, prefix=prefix)
    clients = Clients(world, menus)
    seen: list[float] = []
    for step in range(alone + 300):
        clients.top_up(*("ab" if step >= alone else "a"))
        world.step()
        if step >= alone:
            seen.append(world.charged("a") / weight - world.charged("b"))
    assert max(seen) - min(seen) <= 2 * charge(weights)


def ask(world: Simulation, tenant: str, count: int, prompt: int, answer: int) -> list[Sequence]:
    asked = [Sequence(f"{tenant}{world.steps}/{at}", [1] * prompt, answer, tenant=tenant) for at in range(count)]
    for sequence in asked:
        world.submit(sequence)
    return asked


def running(world: Simulation) -> Counter[str]:
    return Counter(sequence.tenant for sequence in world.scheduler.running)


def test_a_flood_makes_way_for_a_newcomer() -> None:
    """All places are a's, for a thousand steps to come; b's requests get on as soon as a is a charge ahead."""
    world = simulation(500, LIMITS)
    flood = ask(world, "a", 50, 8, 1000)
    for _ in range(100):
        world.step()
    late = ask(world, "b", 2, 8, 20)
    for _ in range(30):
        world.step()
    assert {sequence.request_id for sequence in late} <= set(world.last_run)
    assert 1 <= world.scheduler.preemptions <= 2
    kept = [sequence for sequence in world.scheduler.running if sequence.tenant == "a"]
    assert kept == flood[: len(kept)], "the youngest made way"


@pytest.mark.parametrize("busy", [0, 40])
def test_a_newcomer_is_not_behind_prompts_that_are_already_admitted(busy: int) -> None:
    """Places are free and nobody waits, yet a's prompts are many steps of work."""
    limits = replace(LIMITS, sequences=24)
    world = simulation(500, limits)
    ask(world, "a", 20 + busy, 90, 4)
    for _ in range(3):
        world.step()
    (late,) = ask(world, "b", 1, 8, 4)
    for _ in range(2):
        world.step()
    assert late.generated > 0


def test_steps_are_short_while_tenants_compete() -> None:
    limits = replace(LIMITS, contended=6)
    world = simulation(500, limits)
    ask(world, "a", 20, 90, 4)
    alone = world.scheduler.plan()
    assert alone is not None
    assert alone.tokens == STEP
    assert not world.scheduler.contended
    ask(world, "b", 1, 8, 4)
    beside = world.scheduler.plan()
    assert beside is not None
    assert beside.tokens - beside.decodes == 6
    assert world.scheduler.contended


def test_without_contention_order_of_arrival_decides() -> None:
    world = simulation(500, LIMITS)
    ask(world, "a", 6, 8, 50)
    for _ in range(40):
        world.step()
    ask(world, "b", 2, 8, 50)
    for _ in range(9):
        world.step()
    assert running(world) == {"a": 6, "b": 2}
    assert world.scheduler.preemptions == 0


def test_idling_earns_nothing() -> None:
    """b asked for little while a worked for long: b has its half from now on, not what it left unused."""
    world = simulation(500, LIMITS)
    ask(world, "b", 1, 4, 400)
    ask(world, "a", 40, 8, 1000)
    for _ in range(200):
        world.step()
    ask(world, "b", 40, 8, 1000)
    before = world.served.copy()
    for _ in range(200):
        world.step()
    gained = {tenant: world.served[tenant] - before[tenant] for tenant in "ab"}
    assert abs(gained["a"] - gained["b"]) <= 2 * (1000 + 8 + 2 * STEP) / 4


def test_the_heavier_tenant_has_its_multiple() -> None:
    world = simulation(500, LIMITS, weights={"a": 3.0})
    for tenant in "ab":
        ask(world, tenant, 60, 8, 40)
    for _ in range(150):
        world.step()
    assert world.served["a"] / world.served["b"] == pytest.approx(3, rel=0.25)


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_head_that_does_not_fit_is_overtaken_for_a_while_only(overlapped: bool) -> None:
    """b's long prompt needs pages that a's short requests take: they overtake it for so many tokens, no longer."""
    world = simulation(10, LIMITS, overlapped=overlapped)
    ask(world, "a", 3, 16, 60)
    world.step()
    (long,) = ask(world, "b", 1, 120, 4)
    ask(world, "a", 200, 16, 14)
    overtook = 0
    while long.stay == 0:
        before = world.served["a"]
        world.step()
        overtook += world.served["a"] - before
    bound = (120 + STEP) + (60 + 16 + STEP) + LIMITS.sequences
    assert 0 < overtook <= bound
    assert world.scheduler.queued > 100


def test_a_tenants_own_queue_is_never_jumped() -> None:
    world = simulation(10, LIMITS)
    ask(world, "a", 1, 60, 100)
    world.step()
    large, small = ask(world, "a", 1, 120, 4), ask(world, "a", 1, 2, 4)
    for _ in range(20):
        world.step()
    assert world.scheduler.waiting == [*large, *small]


@settings(max_examples=cases(40), deadline=None)
@given(st.lists(MENUS, min_size=2, max_size=6), st.integers(8, 40), st.booleans())
def test_the_oldest_of_every_tenant_gets_on(menus: list[list[tuple[int, int]]], pages: int, overlapped: bool) -> None:
    """However many tenants keep asking, and for what: each oldest request ends within a bounded time."""
    names = [str(number) for number in range(len(menus))]
    world = simulation(pages, LIMITS, overlapped=overlapped)
    clients = Clients(world, dict(zip(names, menus, strict=True)))
    clients.top_up(*names)
    first = [next(sequence for sequence in world.live if sequence.tenant == name) for name in names]
    for _ in range(60 * len(names) * (LONGEST + STEP) // 8):
        clients.top_up(*names)
        world.step()
        if all(sequence.ended for sequence in first):
            break
    assert all(sequence.ended for sequence in first)


@settings(max_examples=cases(100), deadline=None)
@example(7, [(4, 0, 2.0), (4, 0, 0.5)])
@given(
    st.integers(0, 200),
    st.lists(st.tuples(st.integers(0, 100), st.integers(-50, 50), st.sampled_from([0.5, 1.0, 2.0])), max_size=6),
)
def test_prompt_tokens_go_to_whoever_had_least(budget: int, asked: list[tuple[int, int, float]]) -> None:
    tenants = [Tenant(str(number), price) for number, (_, _, price) in enumerate(asked)]
    wanted = {tenant: tokens for tenant, (tokens, _, _) in zip(tenants, asked, strict=True)}
    served = {tenant: float(level) for tenant, (_, level, _) in zip(tenants, asked, strict=True)}
    given_out = share_out(budget, wanted, served)
    assert sum(given_out.values()) == min(budget, sum(wanted.values()))
    assert all(0 <= given_out[tenant] <= wanted[tenant] for tenant in tenants)
    level = {tenant: served[tenant] + given_out[tenant] * tenant.price for tenant in tenants}
    for lucky in tenants:
        for short in tenants:
            if given_out[lucky] and given_out[short] < wanted[short]:
                assert level[lucky] <= level[short] + lucky.price + short.price * len(tenants)


def test_a_tenant_has_the_weight_that_its_newest_request_brings() -> None:
    tenants = Tenants({}, 10, 0)
    first, second = Sequence("r1", [1], 1, tenant="a", weight=4), Sequence("r2", [1], 1, tenant="a", weight=2)
    tenants.arrive(first)
    assert tenants.of(first).price == 0.25
    tenants.arrive(second)
    assert tenants.of(first).price == 0.5


def test_weights_are_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        Tenants({"a": 0}, 10, 0)
