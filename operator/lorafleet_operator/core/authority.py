"""When the authority behind the engines' certificates is made anew, whom to trust meanwhile, and the terms of what it
issues. Called by shell/authority.py.

A certificate is not remembered: it follows from the authority's key, whom it is for and the term, so that any leader
makes the same one. Terms of one holder begin every TERM_SECONDS, each with a key of its own, and a certificate is good
for half as long again: it is renewed at two thirds of its life.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

DAY = 86_400.0
LIFE_SECONDS = 90 * DAY
TERM_SECONDS = 60 * DAY
ROOT_SECONDS = 3650 * DAY
EARLY_SECONDS = DAY
"""A certificate is valid from so long before its term, for clocks that are behind."""
GRACE_SECONDS = 10.0
"""Nothing is issued by a new authority before whoever connects to engines has had so long to learn of it."""


@dataclass(frozen=True, slots=True)
class Root:
    """The certificate of an authority: the SHA-256 of it in hex, and from when to when it is valid (epoch seconds)."""

    fingerprint: str
    starts: float
    expires: float
    pem: str


@dataclass(frozen=True, slots=True)
class Term:
    """One of the terms of a holder, numbered, and the validity of its certificate (epoch seconds)."""

    number: int
    starts: float
    expires: float


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of the authority at one moment.

    `root` is the present one's certificate (None: there is none), `made_here` whether the operator made it (or may make
    the first one) and so renews it. `published` are the roots that whoever connects is told to trust, the present one
    among them `published_for` seconds as far as this process knows. `lagging`: an engine does not show a certificate of
    the present one yet.
    """

    root: Root | None
    made_here: bool
    published: tuple[Root, ...]
    published_for: float
    lagging: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do: `make` an authority, tell everybody to trust `trusted`, and whether the present one `issues`."""

    make: bool
    trusted: tuple[Root, ...]
    issues: bool


def decide(sight: Sight, now: float) -> Decision:
    """First a new root is published, then it issues, and the one before goes once no engine needs it any more."""
    root = sight.root
    if root is None:
        return Decision(sight.made_here, _valid(sight.published, now), issues=False)
    if sight.made_here and now >= root.starts + (root.expires - root.starts) * 2 / 3:
        return Decision(True, _valid(sight.published, now), issues=root.expires > now)
    others = [each for each in _valid(sight.published, now) if each.fingerprint != root.fingerprint]
    known = any(each.fingerprint == root.fingerprint for each in sight.published)
    patient = not others or (known and sight.published_for >= GRACE_SECONDS)
    kept = others if sight.lagging or not patient else []
    return Decision(False, (root, *kept), issues=patient and root.expires > now)


def term_of(root: Root, holder: str, now: float) -> Term:
    """The present term of a holder. Terms of different holders begin at different times: not all is renewed at once."""
    shift = int(hashlib.sha256(holder.encode()).hexdigest()[:12], 16) % int(TERM_SECONDS)
    number = int((now + shift) // TERM_SECONDS)
    starts = number * TERM_SECONDS - shift
    return Term(number, max(starts - EARLY_SECONDS, root.starts), min(starts + LIFE_SECONDS, root.expires))


def _valid(roots: Iterable[Root], now: float) -> tuple[Root, ...]:
    return tuple(each for each in roots if each.expires > now)
