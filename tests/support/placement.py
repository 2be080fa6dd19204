"""Versions and replicas to place, and what becomes of them when a placement is carried out."""

from dataclasses import replace
from typing import Any

from lorafleet_operator.core.placement import place
from lorafleet_operator.core.places import Bin, Item, Placed, Placement, Policy

AGE = "2026-11-30T00:00:00Z"


def item(key: str, size: int = 10, **fields: Any) -> Item:
    return Item(key, AGE, size, **{"count": 1, **fields})


def bins(*budgets: int, **fields: Any) -> list[Bin]:
    return [Bin(f"r{number}", budget, host=10**9, **fields) for number, budget in enumerate(budgets)]


def carry_out(items: list[Item], placement: Placement) -> list[Item]:
    """The items once everything is where it should be."""
    return [
        replace(
            each,
            holders=frozenset(choice.replica for choice in placement.placed[each.key].choices),
            asked={choice.replica: choice.tier for choice in placement.placed[each.key].choices},
            reasons={choice.replica: choice.reason for choice in placement.placed[each.key].choices},
            had=len(placement.placed[each.key].choices),
        )
        for each in items
    ]


def where(placed: Placed) -> list[str]:
    return [each.replica for each in placed.choices]


def why(placed: Placed) -> list[str]:
    return [each.reason for each in placed.choices]


def settle(items: list[Item], room: list[Bin], policy: Policy) -> tuple[list[Item], Placement]:
    """Place and carry out until nothing changes."""
    for _ in range(400):
        placement = place(items, room, policy)
        after = carry_out(items, placement)
        if after == items:
            return items, placement
        items = after
    raise AssertionError("placing never comes to an end")
