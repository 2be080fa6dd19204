"""One version of this engine as the api process knows it. Kept by versions.py, read by the ports; decides nothing."""

import asyncio
import math
from dataclasses import dataclass, field

from lorafleet_contracts.admin import Display, Problem, QualityState, Tier, VersionPhase, VersionState
from lorafleet_contracts.names import version_key
from lorafleet_contracts.probe import QUANTISED_REL_L2, QUANTISED_SAME_ARGMAX
from lorafleet_engine.loader.eviction import Usage
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.messages import Quality

NOT_FINITE = 1e9
"""JSON has no number for a distance from logits that are not finite."""


@dataclass(slots=True)
class Version:
    """One version and its phase. `requests` are those that use it; `seq` is its last change.

    `wanted` is where it was asked to be: what was not asked onto the device comes there when a request needs it
    (`rising`), and makes way again when others need the room and nobody uses it, least `usage` first. For requests, and
    last, those make way too that were asked onto the device; a `pinned` one never does. A `merged` one is in the base's
    weights: the loop knows no adapter of that name, and it never goes.
    """

    uid: str
    digest: str
    origin: Origin
    display: Display
    wanted: Tier = Tier.GPU
    pinned: bool = False
    phase: VersionPhase = VersionPhase.FETCHING
    tier: Tier = Tier.DISK
    rank: int = 0
    bytes: int = 0
    requests: int = 0
    seq: int = 0
    problem: Problem | None = None
    problem_reported: bool = False
    unwanted: bool = False
    template: str | None = None
    merged: bool = False
    quality: QualityState | None = None
    usage: Usage = field(default_factory=lambda: Usage(0, 0))
    rising: asyncio.Task[None] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> str:
        """`{uid}@{digest}`."""
        return version_key(self.uid, self.digest)

    @property
    def resident(self) -> bool:
        """Whether it is on the tier where it was wanted, or nearer."""
        return self.phase is VersionPhase.RESIDENT

    @property
    def on_device(self) -> bool:
        """Whether it can answer now."""
        return self.resident and self.tier is Tier.GPU

    @property
    def nearest(self) -> str:
        """The tier it is on, for metrics; `source` while its files are still being fetched."""
        if self.phase is VersionPhase.FETCHING:
            return "source"
        return Tier.HOST.value if self.phase is VersionPhase.LOADING else self.tier.value

    @property
    def settled(self) -> bool:
        """Whether it is where it was wanted, or has found no room there."""
        return self.resident and self.rising is None

    @property
    def failed(self) -> bool:
        """Whether the last attempt to load it ended in a problem."""
        return self.phase is VersionPhase.FAILED

    def state(self) -> VersionState:
        """What the state port shows."""
        return VersionState(
            uid=self.uid,
            digest=self.digest,
            tier=self.tier,
            wanted=self.wanted,
            pinned=self.pinned,
            phase=self.phase,
            rank=self.rank,
            bytes=self.bytes,
            in_flight=self.requests,
            display=self.display,
            problem=self.problem,
            quality=self.quality,
        )


def judge_quality(found: Quality) -> QualityState:
    """What the state port says about a version on a quantised base, by the contract's measure."""
    passed = found.rel_l2 <= QUANTISED_REL_L2 and found.same_argmax >= QUANTISED_SAME_ARGMAX
    distance = found.rel_l2 if math.isfinite(found.rel_l2) else NOT_FINITE
    return QualityState(rel_l2=distance, same_argmax=found.same_argmax, positions=found.positions, passed=passed)
