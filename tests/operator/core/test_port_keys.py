"""How the keys of the engines' ports rotate, told by what the engines say and nothing else."""

import itertools

import pytest

from lorafleet_contracts.admin import PortName
from lorafleet_operator.core.port_keys import (
    NEXT,
    PREVIOUS,
    EngineUses,
    Mark,
    Period,
    PortKeys,
    Stage,
    accepting,
    not_accepting,
    still_used,
    watch,
)

OLD = PortKeys({port.value: f"old {port.value}".encode() for port in PortName})
FRESH = {port: f"new {port.value}".encode() for port in PortName}
NEW = {port.value: key for port, key in FRESH.items()}
UID = "uid-pool"


def engine(keys: PortKeys, suffixes: tuple[str, ...], at: float = 0.0, name: str = "demo/a") -> EngineUses:
    """An engine that accepts such tokens, last used at `at`."""
    marks: set[Mark] = set().union(*(keys.marks(UID, suffix) for suffix in suffixes))
    return EngineUses(name, UID, dict.fromkeys(marks, at))


def test_each_step_keeps_what_is_in_use_accepted() -> None:
    offered = OLD.offer(FRESH)
    replaced = offered.replace()
    settled = replaced.settle()
    assert [each.stage for each in (OLD, offered, replaced, settled)] == [
        Stage.RESTING,
        Stage.OFFERED,
        Stage.REPLACED,
        Stage.RESTING,
    ]
    assert settled.by_entry == NEW
    steps = [each.tokens_for(UID).by_port for each in (OLD, offered, replaced, settled)]
    for port in PortName:
        for before, after in itertools.pairwise(steps):
            assert after[port.value][0] in before[port.value], "a token is accepted before it is used"
    assert offered.marks(UID, NEXT) == replaced.marks(UID, "")
    assert OLD.marks(UID, "") == replaced.marks(UID, PREVIOUS)
    assert replaced.marks(UID, PREVIOUS) != replaced.marks("uid-other", PREVIOUS), "each pool has tokens of its own"


def test_half_a_set_of_new_keys_is_no_rotation() -> None:
    """Somebody's hand: the next rotation makes all three anew."""
    half = PortKeys({**OLD.by_entry, "state" + NEXT: b"x", "admin" + PREVIOUS: b"y"})
    assert half.stage is Stage.RESTING
    assert half.offer(FRESH).replace().settle().by_entry == NEW


def test_new_tokens_wait_for_every_engine() -> None:
    offered = OLD.offer(FRESH)
    ready, deaf = engine(offered, ("", NEXT)), engine(offered, ("",), name="demo/b")
    assert not_accepting(offered, [ready]) == ()
    assert not_accepting(offered, [ready, deaf]) == ("demo/b",)
    assert not_accepting(offered, [ready, EngineUses("demo/c", UID, None)]) == ("demo/c",)


def test_old_tokens_wait_until_nobody_uses_them() -> None:
    replaced = OLD.offer(FRESH).replace()
    idle, used = (engine(replaced, ("", PREVIOUS), at) for at in (10.0, 11.0))
    watched = watch(None, replaced, [idle], now=100.0)
    assert still_used(watched, [idle], until=99.0) == ("demo/a",), "watched for less than the quiet time"
    watched = watch(watched, replaced, [idle], now=200.0)
    assert still_used(watched, [idle], until=100.0) == ()
    watched = watch(watched, replaced, [used], now=300.0)
    assert still_used(watched, [used], until=299.0) == ("demo/a",), "its clock has moved: somebody used one"
    watched = watch(watched, replaced, [used], now=400.0)
    assert still_used(watched, [used], until=300.0) == ()
    assert still_used(watched, [EngineUses("demo/a", UID, None)], until=300.0) == ("demo/a",), "it does not say"


def test_a_new_tokens_use_counts_for_nothing() -> None:
    replaced = OLD.offer(FRESH).replace()
    watched = watch(None, replaced, [engine(replaced, ("",), 1.0)], now=1.0)
    watched = watch(watched, replaced, [engine(replaced, ("",), 2.0)], now=2.0)
    assert still_used(watched, [engine(replaced, ("",), 2.0)], until=1.0) == ()


def test_engines_that_still_accept_an_old_token_are_named() -> None:
    replaced = OLD.offer(FRESH).replace()
    old = replaced.marks(UID, PREVIOUS)
    engines = [
        engine(replaced, ("",)),
        engine(replaced, ("", PREVIOUS), name="demo/b"),
        EngineUses("demo/c", UID, None),
    ]
    assert accepting(old, engines) == ("demo/b", "demo/c")


@pytest.mark.parametrize(
    ("every", "stage", "now", "wanted"),
    [
        (None, Stage.RESTING, 1e12, False),
        (None, Stage.OFFERED, 1e12, False),
        (100.0, Stage.RESTING, 1099.0, False),
        (100.0, Stage.RESTING, 1100.0, True),
        (100.0, Stage.OFFERED, 0.0, True),
        (100.0, Stage.REPLACED, 0.0, True),
    ],
)
def test_a_period_begins_when_it_is_over_and_ends_what_was_begun(
    every: float | None, stage: Stage, now: float, wanted: bool
) -> None:
    assert Period(every, quiet=1.0).calls_for(stage, 1000.0, now) is wanted
