"""Vectors of when an authority is made, published, issues and goes, and of the terms of certificates."""

from dataclasses import replace

import pytest

from lorafleet_operator.core.authority import (
    DAY,
    EARLY_SECONDS,
    GRACE_SECONDS,
    LIFE_SECONDS,
    TERM_SECONDS,
    Decision,
    Root,
    Sight,
    decide,
    term_of,
)

NOW = 1_800_000_000.0
OLD = Root("old", NOW - 2000 * DAY, NOW + 1650 * DAY, "OLD\n")
NEW = Root("new", NOW - DAY, NOW + 3649 * DAY, "NEW\n")
FIRST = Sight(root=NEW, made_here=True, published=(), published_for=0.0, lagging=False)
CHANGING = replace(FIRST, published=(NEW, OLD), published_for=GRACE_SECONDS, lagging=True)


@pytest.mark.parametrize(
    ("sight", "expected"),
    [
        pytest.param(replace(FIRST, root=None), Decision(True, (), False), id="none yet"),
        pytest.param(replace(FIRST, root=None, made_here=False), Decision(False, (), False), id="another's, not there"),
        pytest.param(
            replace(FIRST, root=None, made_here=False, published=(OLD,)), Decision(False, (OLD,), False),
            id="broken: what was trusted stays",
        ),
        pytest.param(FIRST, Decision(False, (NEW,), True), id="the first one issues at once"),
        pytest.param(replace(FIRST, published=(NEW,)), Decision(False, (NEW,), True), id="nothing to do"),
        pytest.param(
            replace(FIRST, published=(OLD,)), Decision(False, (NEW, OLD), False), id="a new one is published first"
        ),
        pytest.param(
            replace(CHANGING, published_for=GRACE_SECONDS - 1), Decision(False, (NEW, OLD), False),
            id="and issues nothing before it is known",
        ),
        pytest.param(
            replace(CHANGING, published_for=0.0, lagging=False), Decision(False, (NEW, OLD), False),
            id="nor goes the old one before",
        ),
        pytest.param(CHANGING, Decision(False, (NEW, OLD), True), id="then it issues; the old one stays"),
        pytest.param(
            replace(CHANGING, lagging=False), Decision(False, (NEW,), True), id="until no engine shows its certificates"
        ),
        pytest.param(
            replace(CHANGING, published=(NEW, replace(OLD, expires=NOW))), Decision(False, (NEW,), True),
            id="or it expires",
        ),
        pytest.param(
            replace(FIRST, published=(OLD,), root=None), Decision(True, (OLD,), False), id="a deleted one is made anew"
        ),
    ],
)  # fmt: skip
def test_decisions(sight: Sight, expected: Decision) -> None:
    assert decide(sight, NOW) == expected


@pytest.mark.parametrize(("age", "made_here", "make"), [(2400, True, False), (2440, True, True), (2440, False, False)])
def test_only_what_was_made_here_is_renewed_at_two_thirds(age: float, made_here: bool, make: bool) -> None:
    root = Root("r", NOW - age * DAY, NOW + (3650 - age) * DAY, "R\n")
    decision = decide(replace(FIRST, root=root, published=(root,), made_here=made_here), NOW)
    assert (decision.make, decision.trusted, decision.issues) == (make, (root,), True)


def test_an_expired_authority_issues_nothing() -> None:
    root = replace(NEW, expires=NOW)
    assert not decide(replace(FIRST, root=root, made_here=False, published=(root,)), NOW).issues


def test_a_certificate_is_renewed_at_two_thirds_of_its_life() -> None:
    """Through a year, hour by hour: the present term's certificate has always a third of its life left."""
    numbers = set()
    for hour in range(366 * 24):
        now = NOW + hour * 3600.0
        term = term_of(NEW, "pool/u", now)
        numbers.add(term.number)
        assert term.starts <= now
        assert term.expires - now > LIFE_SECONDS - TERM_SECONDS - 1
        assert term.expires - term.starts <= LIFE_SECONDS + EARLY_SECONDS
    assert len(numbers) in (7, 8)


def test_no_certificate_outlives_its_authority() -> None:
    short = replace(NEW, expires=NOW + DAY)
    assert term_of(short, "pool/u", NOW).expires == short.expires
    assert term_of(short, "pool/u", NOW).starts >= short.starts


def test_not_all_are_renewed_at_once() -> None:
    ends = {term_of(NEW, f"pool/{number}", NOW).expires for number in range(100)}
    assert len(ends) > 90
