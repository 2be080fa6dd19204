"""Laws between tenants: equal service over weight while both wait, no credit from idling, nobody waits for ever."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_engine.messages import StepLimits
from lorafleet_engine.scheduler.sequence import Sequence
from tests.engine.support.simulation import Simulation, simulation

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


@settings(max_examples=60, deadline=None)
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
            seen.append(world.served["a"] / weight - world.served["b"])
    assert max(seen) - min(seen) <= 2 * charge(weights)
