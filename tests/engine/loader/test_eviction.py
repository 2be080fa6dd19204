"""Laws of who makes way, and what a use is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorafleet_engine.loader.eviction import HALF_LIFE_S, Held, Usage, choose_victims

NOW = 10_000.0
usages = st.builds(Usage, st.integers(0, 50).map(float), st.floats(0, NOW))
sizes = st.integers(1, 1000)


def entries(size: st.SearchStrategy[int] = sizes) -> st.SearchStrategy[list[Held]]:
    one = st.tuples(size, usages)
    return st.lists(one, max_size=12).map(
        lambda found: [Held(str(number), size, usage) for number, (size, usage) in enumerate(found)]
    )


@given(entries(), st.integers(-10, 5000))
def test_enough_goes_and_nothing_that_need_not(held: list[Held], needed: int) -> None:
    victims = choose_victims(held, needed, NOW)
    size = {entry.name: entry.bytes for entry in held}
    freed = sum(size[name] for name in victims)
    if sum(size.values()) < needed:
        assert sorted(victims) == sorted(size)
    else:
        assert freed >= needed
        assert all(freed - size[name] < needed for name in victims)


@given(entries(st.just(100)), st.integers(1, 1200))
def test_of_equal_size_the_less_used_go(held: list[Held], needed: int) -> None:
    victims = set(choose_victims(held, needed, NOW))
    weights = [(entry.usage.weight_at(NOW), entry.name in victims) for entry in held]
    gone, kept = ([weight for weight, went in weights if went is which] for which in (True, False))
    assert not gone or not kept or max(gone) <= min(kept)


@given(entries(), st.integers(1, 5000), st.randoms(use_true_random=False))
def test_the_order_in_which_they_are_named_does_not_matter(held: list[Held], needed: int, dice: object) -> None:
    shuffled = list(held)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert choose_victims(shuffled, needed, NOW) == choose_victims(held, needed, NOW)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Held("b", 100, Usage(3, 50)), Held("a", 100, Usage(2, 50))),
        (Held("b", 100, Usage(2, 60)), Held("a", 100, Usage(2, 50))),
        (Held("b", 90, Usage(2, 50)), Held("a", 100, Usage(2, 50))),
    ],
)
def test_more_used_later_used_or_smaller_stays(better: Held, worse: Held) -> None:
    assert choose_victims([better, worse], 80, 100) == ["a"]


def test_uses_fade() -> None:
    often_long_ago = Usage(0, 0).used(0).used(0).used(0)
    assert often_long_ago.weight_at(0) == 3
    assert often_long_ago.weight_at(2 * HALF_LIFE_S) == 0.75
    assert often_long_ago.used(2 * HALF_LIFE_S).weight_at(2 * HALF_LIFE_S) == 1.75
