"""What holds of any placement."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_contracts.admin import Tier
from lorafleet_operator.core.placement import place
from lorafleet_operator.core.places import Bin, Item, Placed, Policy
from tests.support.placement import carry_out, item, settle, where


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Item], list[Bin]]:
    room = [
        Bin(
            f"r{number}",
            draw(st.integers(0, 200)),
            host=draw(st.integers(0, 300)),
            domain=draw(st.sampled_from(["", "east", "west"])),
            leaving=draw(st.integers(0, 5)) == 0,
        )
        for number in range(draw(st.integers(0, 5)))
    ]
    items = [
        item(
            f"a{number}",
            draw(st.integers(1, 120)),
            count=draw(st.integers(1, 3)),
            load=draw(st.sampled_from([0.0, 0.01, 0.2, 1.0, 5.0, 20.0])),
            pinned=draw(st.integers(0, 4)) == 0,
            priority=draw(st.integers(-1, 1)),
            holders=frozenset(each.name for each in room if draw(st.integers(0, 3)) == 0),
            avoid=frozenset(each.name for each in room if draw(st.integers(0, 6)) == 0),
        )
        for number in range(draw(st.integers(0, 10)))
    ]
    return items, room


def on_replicas(items: list[Item], placed: Mapping[str, Placed]) -> dict[str, list[tuple[Item, Tier, bool]]]:
    found: dict[str, list[tuple[Item, Tier, bool]]] = {}
    for each in items:
        for choice in placed[each.key].choices:
            found.setdefault(choice.replica, []).append((each, choice.tier, choice.pinned))
    return found


@settings(max_examples=100, deadline=None)
@given(situations(), st.integers(0, 3))
def test_budgets_hold_and_everything_else_can_be_raised_beside_it(
    situation: tuple[list[Item], list[Bin]], moves: int
) -> None:
    items, room = [replace(each, holders=frozenset()) for each in situation[0]], situation[1]
    for _ in range(3):
        placement = place(items, room, Policy(moves=moves))
        assert placement == place(list(reversed(items)), list(reversed(room)), Policy(moves=moves)), "deterministic"
        assert placement.moves <= moves
        for name, held in on_replicas(items, placement.placed).items():
            budget = next(each.budget for each in room if each.name == name)
            sure = sum(each.bytes for each, tier, _ in held if tier is Tier.GPU)
            assert sure + max((each.bytes for each, tier, _ in held if tier is not Tier.GPU), default=0) <= budget
        items = carry_out(items, placement)


@settings(max_examples=100, deadline=None)
@given(situations())
def test_everything_that_fits_is_somewhere_and_redundant_where_it_must_be(
    situation: tuple[list[Item], list[Bin]],
) -> None:
    items, room = [replace(each, holders=frozenset()) for each in situation[0]], situation[1]
    staying = [each for each in room if not each.leaving] or room
    placed = place(items, room, Policy(redundancy=1)).placed
    pins = {each.name: 0 for each in room}
    for each in items:
        for choice in placed[each.key].choices:
            pins[choice.replica] += each.bytes if each.pinned else 0
    for each in items:
        names = where(placed[each.key])
        assert len(names) == len(set(names))
        assert set(names) <= {one.name for one in staying}
        open_to = [one for one in staying if one.name not in names and pins[one.name] + each.bytes <= one.budget]
        must = max(each.count, 2 if each.pinned else 1)
        assert len(names) >= min(must, len(names) + len(open_to)), "as many as there was room for"
        if each.pinned and len(names) >= 2 and not each.avoid:
            domains = {one.name: one.domain or one.name for one in staying}
            if len({domains[name] for name in names}) == 1:
                assert all(domains[one.name] == domains[names[0]] for one in open_to)


@settings(max_examples=100, deadline=None)
@given(situations())
def test_placing_what_was_placed_changes_nothing_and_moves_come_to_an_end(
    situation: tuple[list[Item], list[Bin]],
) -> None:
    items, room = situation
    for _ in range(2):  # tiers change once more when what leaves has left
        items = carry_out(items, place(items, room, Policy(moves=0)))
    assert carry_out(items, place(items, room, Policy(moves=0))) == items
    settle(items, room, Policy(moves=1))


@settings(max_examples=60, deadline=None)
@given(situations(), st.data())
def test_the_loss_of_any_replica_or_domain_leaves_what_is_redundant_on_the_gpu_and_in_budget(
    situation: tuple[list[Item], list[Bin]], data: st.DataObject
) -> None:
    items, placement = settle(situation[0], situation[1], Policy(moves=1))
    room = situation[1]
    if not room:
        return
    one = data.draw(st.sampled_from(room))
    lost = {each.name for each in room if each is one or (one.domain and each.domain == one.domain)}
    if data.draw(st.booleans()):
        lost = {one.name}
    left = [each for each in room if each.name not in lost]
    after = place([replace(each, holders=each.holders - lost) for each in items], left, Policy(moves=0)).placed
    for each in items:
        before = [choice for choice in placement.placed[each.key].choices if choice.replica not in lost]
        sure = {choice.replica for choice in before if choice.pinned}
        if each.pinned:
            assert {choice.replica for choice in before} <= set(where(after[each.key])), "it answers where it is"
            assert sure <= {choice.replica for choice in after[each.key].choices if choice.pinned}, "and makes no way"
    for name, held in on_replicas(items, after).items():
        budget = next(bin_.budget for bin_ in left if bin_.name == name)
        assert sum(each.bytes for each, tier, _ in held if tier is Tier.GPU) <= budget
