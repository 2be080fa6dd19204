"""What placement does with replicas and versions: examples by name (test_placement_laws.py has the laws)."""

from dataclasses import replace

import pytest

from lorafleet_contracts.admin import Tier
from lorafleet_operator.core.placement import place
from lorafleet_operator.core.places import Bin, Item, Placed, Policy
from tests.support.placement import bins, carry_out, item, settle, where, why


def test_without_traffic_versions_spread_by_bytes_and_number() -> None:
    placement = place([item(f"a{number}") for number in range(6)], bins(100, 100, 100), Policy())
    assert sorted(where(each)[0] for each in placement.placed.values()) == ["r0", "r0", "r1", "r1", "r2", "r2"]
    assert {reason for each in placement.placed.values() for reason in why(each)} == {"LeastLoaded"}


def test_a_hot_version_gets_copies_by_its_share_of_the_load_one_move_at_a_time() -> None:
    hot, cold = item("hot", load=9.0), item("cold", load=1.0)
    room = bins(100, 100, 100, 100)
    _, placement = settle([hot, cold], room, Policy(moves=1))
    assert len(placement.placed["hot"].choices) == 4, "3.6 even shares, one each"
    assert sorted(why(placement.placed["hot"])) == ["Hot", "Hot", "LeastLoaded", "Redundancy"]
    second = place(carry_out([hot, cold], place([hot, cold], room, Policy())), room, Policy(moves=1))
    assert second.moves == 1
    assert len(second.placed["hot"].choices) == 2


def test_little_load_is_worth_no_more_copies_than_redundancy_asks_for() -> None:
    _, placement = settle([item("only", load=0.4)], bins(*[100] * 10), Policy(moves=1))
    assert len(placement.placed["only"].choices) == 2


def test_without_moves_no_copy_is_made() -> None:
    items = carry_out([item("hot", load=9.0)], place([item("hot")], bins(100, 100), Policy()))
    placement = place(items, bins(100, 100), Policy(moves=0))
    assert placement.moves == 0
    assert len(placement.placed["hot"].choices) == 1


def test_a_version_that_cools_down_keeps_its_copies_down_to_half_of_what_gave_them() -> None:
    hot, rest = item("hot", load=6.0), [item(f"a{number}", load=1.0) for number in range(4)]
    items, placement = settle([hot, *rest], bins(100, 100, 100, 100), Policy(moves=1))
    copies = len(placement.placed["hot"].choices)
    assert copies == 3
    cooler = [replace(each, load=2.5) if each.key == "hot" else each for each in items]
    assert len(place(cooler, bins(100, 100, 100, 100), Policy(moves=1)).placed["hot"].choices) == copies
    cold = [replace(each, load=0.01) if each.key == "hot" else each for each in items]
    assert len(place(cold, bins(100, 100, 100, 100), Policy(moves=1)).placed["hot"].choices) == 1


def test_a_lost_copy_of_a_hot_version_comes_back_at_once() -> None:
    items, placement = settle([item("hot", load=1.0), item("a", load=1.0)], bins(100, 100, 100), Policy(moves=1))
    lost = where(placement.placed["hot"])[0]
    left = [each for each in bins(100, 100, 100) if each.name != lost]
    after = place([replace(each, holders=each.holders - {lost}) for each in items], left, Policy(moves=0))
    assert after.moves == 0
    assert len(after.placed["hot"].choices) == 2


def test_a_copy_on_a_replica_that_came_back_goes_again_and_what_a_load_had_earned_stays() -> None:
    both = frozenset({"r0", "r1"})
    held = item("a", holders=both, reasons={"r0": "Stays", "r1": "LeastLoaded"})
    for had in (1, 2):
        assert len(place([replace(held, had=had)], bins(100, 100), Policy()).placed["a"].choices) == had


def test_a_pinned_version_is_redundant_from_the_start_and_in_different_domains() -> None:
    room = [Bin(f"r{number}", 100, domain="east" if number < 2 else "west") for number in range(3)]
    placed = place([item("p", pinned=True)], room, Policy(redundancy=1)).placed["p"]
    assert {each.replica for each in placed.choices} in ({"r0", "r2"}, {"r1", "r2"})
    assert all(each.pinned for each in placed.choices)
    assert why(placed) == ["LeastLoaded", "Redundancy"]


def test_with_one_domain_left_redundancy_takes_what_there_is() -> None:
    room = [Bin(f"r{number}", 100, domain="east") for number in range(2)]
    assert len(place([item("p", pinned=True)], room, Policy()).placed["p"].choices) == 2


def test_what_is_on_a_leaving_replica_goes_elsewhere_unless_there_is_no_other() -> None:
    there = item("a", holders=frozenset({"r0"}), asked={"r0": Tier.GPU})
    leaving = Bin("r0", 100, leaving=True)
    assert where(place([there], [leaving, Bin("r1", 100)], Policy()).placed["a"]) == ["r1"]
    assert where(place([there], [leaving], Policy()).placed["a"]) == ["r0"]


def test_where_not_all_fit_the_used_are_sure_of_the_gpu_and_the_others_share_the_rest() -> None:
    loads = {"pin": 0.0, "prio": 0.0, "hot": 10.0, "a": 0.5, "b": 0.4, "c": 0.3}
    items = [
        item(key, 20, load=load, pinned=key == "pin", priority=3 if key == "prio" else 0) for key, load in loads.items()
    ]
    placed = place(items, bins(100), Policy()).placed
    tiers = {key: each.choices[0].tier for key, each in placed.items()}
    assert tiers == {key: Tier.GPU if key in ("pin", "prio", "hot") else Tier.HOST for key in loads}
    assert [key for key, each in placed.items() if each.choices[0].pinned] == ["pin"]


def test_an_empty_gpu_is_filled_first_and_shared_afterwards() -> None:
    items = [item(f"a{number}", 20, load=60.0 if number == 5 else 1.0 + number / 10) for number in range(6)]
    room = [Bin("r0", 100, free=100, host=10**9)]
    first = place([replace(each, load=each.load / 1000) for each in items], room, Policy())
    assert sorted(key for key, each in first.placed.items() if each.choices[0].tier is Tier.GPU) == [
        "a1", "a2", "a3", "a4", "a5"
    ]  # fmt: skip
    later = place(carry_out(items, first), [replace(room[0], free=0)], Policy())
    assert [key for key, each in later.placed.items() if each.choices[0].tier is Tier.GPU] == ["a5"], "it is hot"


def test_what_the_host_cache_cannot_hold_is_left_on_the_disk() -> None:
    items = [item(f"a{number}", 40, load=float(5 - number)) for number in range(4)]
    placed = place(items, [Bin("r0", 50, host=50)], Policy()).placed
    assert [placed[f"a{number}"].choices[0].tier.value for number in range(4)] == ["host", "disk", "disk", "disk"]


def test_what_fits_no_replica_beside_its_pins_is_nowhere_with_the_room_there_is() -> None:
    placed = place([item("pin", 60, pinned=True), item("big", 50), item("small", 40)], bins(100), Policy()).placed
    assert placed["big"] == Placed((), 40)
    assert where(placed["small"]) == ["r0"]


def test_a_pin_comes_second_to_what_could_not_be_raised_beside_it() -> None:
    there = item("big", 90, holders=frozenset({"r0"}), asked={"r0": Tier.GPU})
    placed = place([there, item("pin", 20, pinned=True)], bins(100), Policy()).placed
    assert where(placed["big"]) == ["r0"]
    assert not placed["pin"].choices[0].pinned


def test_a_pin_makes_no_way_for_one_that_comes_because_its_own_replica_is_lost() -> None:
    there = item("there", 40, pinned=True, holders=frozenset({"r0"}), asked={"r0": Tier.GPU})
    beside = item("beside", 30, holders=frozenset({"r0"}), asked={"r0": Tier.GPU})
    comes = item("comes", 45, load=9.0, pinned=True, priority=1)
    placed = place([there, beside, comes], bins(100), Policy(redundancy=0)).placed
    assert {key: each.choices[0].pinned for key, each in placed.items()} == {
        "there": True, "beside": False, "comes": False
    }  # fmt: skip


def test_a_new_version_waits_on_the_host_tier_until_what_leaves_has_left() -> None:
    kept = item("kept", 40, holders=frozenset({"r0"}), asked={"r0": Tier.GPU})
    placed = place([kept, item("new", 40)], bins(100, others=40), Policy()).placed
    assert placed["kept"].choices[0].tier is Tier.GPU
    assert placed["new"].choices[0].tier is Tier.HOST
    after = place([kept, item("new", 40, holders=frozenset({"r0"}), asked={"r0": Tier.HOST})], bins(100), Policy())
    assert after.placed["new"].choices[0].tier is Tier.GPU


def test_of_two_copies_the_one_stays_where_the_load_is_lower() -> None:
    busy = item("busy", load=10.0, holders=frozenset({"r0"}), asked={"r0": Tier.GPU})
    idle = item("idle", load=1.0, holders=frozenset({"r1"}), asked={"r1": Tier.GPU})
    twice = item("twice", load=0.05, holders=frozenset({"r0", "r1"}))
    assert where(place([busy, idle, twice], bins(100, 100), Policy()).placed["twice"]) == ["r1"]


def test_a_move_is_made_where_it_evens_out_the_load_and_only_there() -> None:
    def held(key: str, load: float, name: str) -> Item:
        return item(key, load=load, holders=frozenset({name}), asked={name: Tier.GPU}, reasons={name: "Spread"})

    crowd = [held(f"a{number}", 1.0, "r0") for number in range(8)] + [held("b", 1.0, "r1")]
    room = bins(100, 100, 100)
    placement = place(crowd, room, Policy(redundancy=0, moves=1))
    assert placement.moves == 1
    moved = [key for key, each in placement.placed.items() if why(each) == ["Balance"]]
    assert len(moved) == 1
    assert where(placement.placed[moved[0]]) == ["r2"]
    even = [held(f"a{number}", 1.0, f"r{number % 3}") for number in range(9)]
    assert place(even, room, Policy(redundancy=0, moves=9)).moves == 0
    quiet = [replace(each, load=each.load / 100) for each in crowd]
    assert place(quiet, room, Policy(redundancy=0, moves=9)).moves == 0, "so little load is worth no move"


def test_what_nobody_asks_for_is_not_drawn_to_the_replica_with_less_load() -> None:
    asked, _ = settle([item("a", load=0.6), item("b", load=0.4)], bins(100, 100), Policy(moves=1))
    _, placement = settle([*asked, *(item(f"new{number}") for number in range(4))], bins(100, 100), Policy(moves=1))
    found = [where(placement.placed[f"new{number}"]) for number in range(4)]
    assert {len(each) for each in found} == {1}
    assert {each[0] for each in found} == {"r0", "r1"}
    assert all(why(placement.placed[f"new{number}"]) == ["LeastLoaded"] for number in range(4)), "and none was moved"


def test_what_is_much_is_judged_by_what_a_replica_can_do() -> None:
    slow, fast = Policy(redundancy=0, moves=1, capacity=0.5), Policy(redundancy=0, moves=1, capacity=8.0)
    one = [item("only", load=0.4, holders=frozenset({"r0"}), reasons={"r0": "LeastLoaded"})]
    assert len(settle(one, bins(100, 100), slow)[1].placed["only"].choices) == 2, "a second replica is there for it"
    assert len(settle(one, bins(100, 100), fast)[1].placed["only"].choices) == 1
    two = [item(key, load=0.2, holders=frozenset({"r0"}), reasons={"r0": "LeastLoaded"}) for key in "ab"]
    assert {where(each)[0] for each in settle(two, bins(100, 100), slow)[1].placed.values()} == {"r0", "r1"}
    assert {where(each)[0] for each in settle(two, bins(100, 100), fast)[1].placed.values()} == {"r0"}


def test_what_is_answered_elsewhere_keeps_its_copies_and_makes_no_replica_busy() -> None:
    both = frozenset({"r0", "r1"})
    mine = item("mine", away=8.0, holders=both, reasons={"r0": "LeastLoaded", "r1": "Redundancy"}, had=2)
    others = [item(f"a{number}", load=1.0) for number in range(6)]
    _, placement = settle([mine, *others], bins(100, 100, 100), Policy(moves=1))
    assert len(placement.placed["mine"].choices) == 2, "its own replicas may be lost"
    counts = [sum(where(placement.placed[each.key]) == [f"r{number}"] for each in others) for number in range(3)]
    assert counts == [2, 2, 2]
    alone = place([mine], bins(100, 100), Policy(moves=1)).placed["mine"]
    assert len(alone.choices) == 2


def test_bytes_that_do_not_fit_are_moved_to_where_they_do() -> None:
    crowd = [item(f"a{number}", 40, holders=frozenset({"r0"}), asked={"r0": Tier.GPU}) for number in range(4)]
    _, placement = settle(crowd, bins(100, 100), Policy(moves=1))
    assert sorted(where(each)[0] for each in placement.placed.values()) == ["r0", "r0", "r1", "r1"]
    assert all(choice.tier is Tier.GPU for each in placement.placed.values() for choice in each.choices)


def test_where_not_all_fit_what_is_used_goes_to_where_little_is_used() -> None:
    def held(key: str, name: str, size: int, load: float) -> Item:
        return item(key, size, load=load, holders=frozenset({name}), asked={name: Tier.HOST}, reasons={name: "Spread"})

    rest = [held(f"rare{number}", "r0", 10, 0.001) for number in range(18)] + [held("busy", "r0", 10, 8.0)]
    used = [held(f"used{number:02d}", "r1", 10, 0.4) for number in range(19)]
    _, placement = settle([*rest, *used], bins(100, 100), Policy(redundancy=0, moves=1))
    moved = {key for key, each in placement.placed.items() if why(each) == ["Balance"]}
    assert moved, "loads and bytes are even, what is used is not"
    assert all(each.startswith("used") for each in moved)


def test_pins_that_do_not_fit_together_are_parted() -> None:
    crowd = [item(key, 60, pinned=True, holders=frozenset({"r0"}), asked={"r0": Tier.GPU}) for key in "ab"]
    _, placement = settle(crowd, bins(100, 100), Policy(redundancy=0, moves=1))
    choices = [choice for each in placement.placed.values() for choice in each.choices]
    assert sorted(each.replica for each in choices) == ["r0", "r1"]
    assert all(each.pinned for each in choices)


def test_nothing_is_placed_where_there_is_no_replica() -> None:
    assert place([item("a")], [], Policy()).placed["a"] == Placed(())


@pytest.mark.parametrize(("adapters", "replicas"), [(1000, 20)])
def test_a_large_fleet_is_placed_evenly(adapters: int, replicas: int) -> None:
    items = [item(f"a{number}", 8 * (1 + number % 5), load=1 / (1 + number)) for number in range(adapters)]
    room = bins(*[sum(each.bytes for each in items) // replicas] * replicas)
    used = {each.name: 0 for each in room}
    for key, each in place(items, room, Policy()).placed.items():
        used[where(each)[0]] += next(one.bytes for one in items if one.key == key)
    assert max(used.values()) <= 1.02 * min(used.values())
