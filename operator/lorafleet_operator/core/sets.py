"""A pool's sets of replicas as a plan wants them. Used by planning and manifests; holds values, decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lorafleet_contracts.resources.pool import SetKind

_KINDS: Final[Mapping[str, SetKind]] = {"class": "RankClass", "private": "Private", "merged": "Merged"}


@dataclass(frozen=True, slots=True)
class Merge:
    """The one version (`{uid}@{digest}`) that a set's engines merge into their weights, and what people call it."""

    uri: str
    version: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class EngineSet:
    """One set of equal replicas: `name` is its label, unique inside the pool, `replicas` how many there should be.

    `ceiling` is the highest rank of a rank class, `tenant` the namespace/name that a dedicated set is for, `why` says
    where the size comes from. Names are `shared`, `class-CEILING`, `private-XXXXXXXX` and `merged-XXXXXXXX`. For now
    (drains.py) replicas of a number below `partition` keep an old template, and `disruptions` of them may be evicted.
    """

    name: str
    kind: SetKind
    replicas: int
    ceiling: int | None = None
    tenant: str | None = None
    merged: Merge | None = None
    why: str = ""
    partition: int = 0
    disruptions: int = 1


def kind_of(name: str) -> SetKind:
    """The kind of a set that is known by its name only."""
    return _KINDS.get(name.partition("-")[0], "Shared")
