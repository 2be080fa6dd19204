"""What the api and loader processes say to each other: frozen values, pickled over a pipe.

Sent by server/loader_client.py, answered by loader/process.py. Every job names itself by `job`; its answer is the
result of its kind or JobFailed. Heartbeat comes every HEARTBEAT_SECONDS, whatever the jobs do.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.messages import BlobRef

HEARTBEAT_SECONDS = 1.0

StartTier = Literal["host", "disk", "source"]
"""Where an adapter was when its load began."""


@dataclass(frozen=True, slots=True)
class LoaderConfig:
    """First message: all that a loader needs. `base_dir` is set when an earlier loader already fetched the base."""

    host_dir: str
    host_bytes: int
    disk_dir: str
    disk_bytes: int
    volumes_dir: str
    dtype: Literal["float32", "bfloat16"]
    base_names: tuple[str, ...]
    target_modules: tuple[str, ...]
    tensor_parallel: int = 1
    base_dir: str | None = None


@dataclass(frozen=True, slots=True)
class FetchBase:
    """Have the base model's files; `digest` "" = any. -> BaseFetched"""

    job: int
    origin: Origin
    digest: str


@dataclass(frozen=True, slots=True)
class InspectAdapter:
    """Fetch and verify onto the disk tier; `digest` None = whatever is there. -> Inspected"""

    job: int
    origin: Origin
    digest: str | None


@dataclass(frozen=True, slots=True)
class PackAdapter:
    """Have the packed blob of exactly this digest on the host tier, pinned until Release. -> Packed"""

    job: int
    origin: Origin
    digest: str


@dataclass(frozen=True, slots=True)
class PackForMerge:
    """Have exactly this adapter in float32 in a file beside the caches, which is the api's to delete. -> ForMerge"""

    job: int
    origin: Origin
    digest: str


@dataclass(frozen=True, slots=True)
class Release:
    """The blob of this digest has been read (or is not wanted any more): it may be evicted, and is with `drop`."""

    digest: str
    drop: bool = False


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Import what packing needs, ahead of the first adapter. Sent once the loop no longer needs the CPU to start."""


Job: TypeAlias = FetchBase | InspectAdapter | PackAdapter | PackForMerge
ToLoader: TypeAlias = Job | Release | WarmUp


@dataclass(frozen=True, slots=True)
class BaseFetched:
    """`model_dir` holds the verified files of the base model."""

    job: int
    model_dir: str
    digest: str


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """What verified files of an adapter hold. `bytes` once packed, `rank` the largest true rank; `device_bytes` are
    those that the share of one GPU takes, all of them where one holds the model."""

    digest: str
    bytes: int
    device_bytes: int
    rank: int
    target_modules: tuple[str, ...]
    base: str
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspected:
    """Answer of InspectAdapter."""

    job: int
    facts: AdapterFacts


@dataclass(frozen=True, slots=True)
class Packed:
    """Answer of PackAdapter. `seconds` by phase: read (packed bytes from the disk tier), or fetch and pack; none where
    the host tier had it."""

    job: int
    facts: AdapterFacts
    blob: BlobRef
    chat_template: str | None
    seconds: tuple[tuple[str, float], ...]
    start_tier: StartTier


@dataclass(frozen=True, slots=True)
class ForMerge:
    """Answer of PackForMerge."""

    job: int
    facts: AdapterFacts
    blob: BlobRef
    chat_template: str | None


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job ended without a result."""

    job: int
    code: ProblemCode
    message: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The loader lives; bytes that adapters take on its two tiers."""

    host_bytes: int
    disk_bytes: int


JobResult: TypeAlias = BaseFetched | Inspected | Packed | ForMerge
FromLoader: TypeAlias = JobResult | JobFailed | Heartbeat
