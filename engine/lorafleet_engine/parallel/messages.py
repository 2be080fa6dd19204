"""What rank 0 and a follower say to each other, pickled over a pipe. A follower does one thing after the other.

FollowerConfig comes first. Collectives are started in the same order everywhere: those of Runner.prepare, then that of
Step, Share and Lend.
"""

from dataclasses import dataclass
from typing import TypeAlias

from lorafleet_engine.messages import BlobRef, LoopConfig
from lorafleet_engine.runner.packing import StepShape


@dataclass(frozen=True, slots=True)
class FollowerConfig:
    """How the `rank`th of `size` processes starts; they meet in the file `meeting`."""

    settings: LoopConfig
    rank: int
    size: int
    meeting: str


@dataclass(frozen=True, slots=True)
class Step:
    """Run a step that is packed already: `ints` are those of rank 0."""

    shape: StepShape
    ints: bytes


@dataclass(frozen=True, slots=True)
class Share:
    """Take the tokens that rank 0 has sampled in the step before."""


@dataclass(frozen=True, slots=True)
class Install:
    """Bring one's share of a packed version into its pages; answered by Installed with the same number."""

    number: int
    rank: int
    pages: tuple[int, ...]
    rows: tuple[int, ...]
    blob: BlobRef


@dataclass(frozen=True, slots=True)
class Lend:
    """Give rank 0 one's share of a version's matrices in one layer; `rows` are its rows of rank."""

    rows: tuple[int, ...]
    layer: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Put the weights with the packed adapter added (float32) in the place of the base's."""

    blob: BlobRef


ToFollower: TypeAlias = Step | Share | Install | Lend | Merge


@dataclass(frozen=True, slots=True)
class FollowerHere:
    """First message: it has started, and goes to the meeting."""


@dataclass(frozen=True, slots=True)
class FollowerReady:
    """The share of the model is in place, in a pool of so many pages and rows of rank."""

    pages: int
    table_rows: int


@dataclass(frozen=True, slots=True)
class FollowerFailed:
    """Last message: an error that the follower cannot go on from."""

    message: str


@dataclass(frozen=True, slots=True)
class Installed:
    """The device has the version, or `error` says why not."""

    number: int
    error: str


FromFollower: TypeAlias = FollowerHere | FollowerReady | FollowerFailed | Installed
