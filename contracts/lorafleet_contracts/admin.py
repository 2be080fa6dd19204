"""Wire models of the engine's state and admin ports. Spoken by the engine's server, the operator and the gateway.

Bytes and tokens are integers. Unknown fields from a newer peer are ignored, so that versions may differ in a rollout.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from lorafleet_contracts.names import version_key
from lorafleet_contracts.resources.schema import Digest

INSPECT_PATH = "/admin/v1/adapters/{uid}/inspect"
VERSION_PATH = "/admin/v1/adapters/{uid}/versions/{digest}"
DRAIN_PATH = "/admin/v1/drain"
STATE_PATH = "/state"
METRICS_PATH = "/metrics"
LIVE_PATH = "/livez"
READY_PATH = "/readyz"


class Wire(BaseModel):
    """Base of the port models: camelCase on the wire, frozen, unknown fields ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class Tier(StrEnum):
    """Where a version's bytes are, fastest first."""

    GPU = "gpu"
    HOST = "host"
    DISK = "disk"


class VersionPhase(StrEnum):
    """What a replica does with a version."""

    FETCHING = "fetching"
    LOADING = "loading"
    RESIDENT = "resident"
    DRAINING = "draining"
    FAILED = "failed"


class ProblemCode(StrEnum):
    """Stable codes of the admin port's problem documents (RFC 9457)."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    SOURCE_UNREACHABLE = "source_unreachable"
    SOURCE_FORBIDDEN = "source_forbidden"
    SOURCE_DENIED = "source_denied"
    CREDENTIALS_UNUSABLE = "credentials_unusable"
    SIGNATURE_REFUSED = "signature_refused"
    DIGEST_MISMATCH = "digest_mismatch"
    BASE_MISMATCH = "base_mismatch"
    DOES_NOT_FIT = "does_not_fit"
    UNSUPPORTED_ADAPTER = "unsupported_adapter"
    LOADER_BUSY = "loader_busy"
    DRAINING = "draining"
    MERGED = "merged"
    INTERNAL = "internal"


class Problem(Wire):
    """An RFC 9457 problem document. `needed` and `free` are bytes, with DOES_NOT_FIT only."""

    type: str = "about:blank"
    title: str
    status: int
    code: ProblemCode
    detail: str = ""
    reasons: list[str] = []
    needed: int | None = None
    free: int | None = None


class Display(Wire):
    """What people call the adapter: labels of metrics only, never a key."""

    namespace: str
    name: str


Secret = Annotated[str, Field(max_length=16_384, repr=False)]


class SourceCredentials(Wire):
    """What opens a source: an S3 key, a bearer token, or a registry's user. Never printed, logged or told again."""

    access_key_id: Secret = ""
    secret_access_key: Secret = ""
    session_token: Secret = ""
    token: Secret = ""
    username: Secret = ""
    password: Secret = ""


class SourceAccess(Wire):
    """What the pool's owner lets and tells an engine about a source.

    `private`: its hosts may be of private networks. `endpoint`: the URL of the S3 server or the Hub, where it is not
    the public one; `region`: S3's. `ca_bundle`: PEM certificates trusted beside the public ones.
    """

    private: bool = False
    endpoint: Annotated[str, Field(max_length=1024)] = ""
    region: Annotated[str, Field(max_length=64)] = ""
    ca_bundle: Annotated[str, Field(max_length=32_768)] = ""


class SourceSpec(Wire):
    """Where the files are; the scheme is one of pvc, file, http, https, s3, hf, oci.

    With `signers` (public keys in PEM) the files must be signed by one of them.
    """

    uri: Annotated[str, Field(max_length=1024)]
    access: SourceAccess = SourceAccess()
    credentials: Annotated[SourceCredentials | None, Field(repr=False)] = None
    signers: tuple[Annotated[str, Field(max_length=1024)], ...] = ()


class InspectRequest(Wire):
    """Fetch and verify on the disk tier only. A new `generation` starts over; the same one is idempotent."""

    generation: Annotated[int, Field(ge=0)]
    source: SourceSpec
    digest: Digest | None = None


class AdapterReport(Wire):
    """What verified files hold. `bytes` is what it takes of the engine's budget (of one GPU's, where several share the
    model), `rank` the largest true rank."""

    digest: Digest
    bytes: int
    rank: int
    target_modules: list[str]
    base: str = ""
    warnings: list[str] = []


class VersionRequest(Wire):
    """Have this version on this tier. Idempotent by the digest in the path.

    On a slower tier than the GPU it comes to the GPU when a request needs it, and makes way there for others again. A
    `pinned` one makes way for nobody.
    """

    source: SourceSpec
    tier: Tier = Tier.GPU
    pinned: bool = False
    display: Display


class MemoryState(Wire):
    """One replica's memory in bytes (`kv*Tokens` in tokens), as budgeted before anything was allocated."""

    total: int
    weights: int
    activations: int
    adapters: int
    adapters_used: int
    kv: int
    kv_tokens: int
    kv_tokens_used: int


class QualityState(Wire):
    """What a quantised base does to one version on the probe set: relative L2 of its logits from those on the same base
    unquantised, the share of `positions` with the same best token, and whether both are near enough (probe.py)."""

    rel_l2: float
    same_argmax: float
    positions: int
    passed: bool


class VersionState(Wire):
    """One version on one replica. `in_flight` counts running and waiting requests that use it; `wanted` and `pinned`
    are what it was last asked to be.

    `quality` comes some seconds after the version on a quantised base, never on others.
    """

    uid: str
    digest: Digest
    tier: Tier
    wanted: Tier = Tier.GPU
    pinned: bool = False
    phase: VersionPhase
    rank: int = 0
    bytes: int = 0
    in_flight: int = 0
    display: Display | None = None
    problem: Problem | None = None
    quality: QualityState | None = None

    @property
    def key(self) -> str:
        """`{uid}@{digest}`."""
        return version_key(self.uid, self.digest)


class ShapeState(Wire):
    """The base's sizes (capacity.ModelShape, the whole model's)."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False


class BaseState(Wire):
    """The base model as it was loaded; `problem` says why it is not, while it is not. `shape` comes with the memory."""

    name: str
    digest: Digest | None = None
    problem: Problem | None = None
    shape: ShapeState | None = None


class ParityState(Wire):
    """How near a merged engine is on the probe set: relative L2 of its logits from the model in fp32, and the unmerged
    engine's; `same_argmax` is the share of `positions` where the best token is the same."""

    merged: float
    unmerged: float
    same_argmax: float
    positions: int


class MergedState(Wire):
    """The adapter in this engine's weights: all that it answers. Ready waits for `parity`."""

    uid: str
    digest: Digest
    parity: ParityState | None = None


class CertificateState(Wire):
    """What an engine's ports speak TLS with: the SHA-256 of the certificate in hex; `problem` says why the one that is
    mounted now is not it."""

    fingerprint: str
    problem: str | None = None


class UsageState(Wire):
    """Monotonic counters of one (tenant, adapter, gateway instance) since the boot."""

    tenant: str
    adapter: str
    gateway: str
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class StepsState(Wire):
    """Monotonic sums over the steps of a boot: all of them, then those that only decode.

    Of the latter: `sequences` and `rank_sum` (true ranks of the distinct adapters) of each step, their squares and
    products, and their products with the seconds the step took: what a fit of the seconds needs.
    """

    steps: int = 0
    seconds: float = 0.0
    decode_steps: int = 0
    decode_seconds: float = 0.0
    sequences: int = 0
    rank_sum: int = 0
    sequences_squared: int = 0
    rank_squared: int = 0
    sequences_rank: int = 0
    seconds_sequences: float = 0.0
    seconds_rank: float = 0.0


class RoutingState(Wire):
    """What requests are routed by: the part of an engine's state that a gateway reads.

    `full` answers list all versions; the others only those changed since N, and `removed` keys. A client whose
    `boot` is not `boot_id` gets a full answer.
    """

    boot_id: str
    seq: int
    full: bool
    ready: bool
    draining: bool
    versions: list[VersionState] = []
    removed: list[str] = []
    in_flight: int = 0
    queue: int = 0


class GatewayState(RoutingState):
    """What a gateway reads of an engine's state. With `&usage=NAME`, `usage` has the rows of that gateway instance that
    have changed since N."""

    usage: list[UsageState] = []


class EngineState(GatewayState):
    """An answer of `GET /state?since=N&boot=ID`, whole. Without `certificate` the ports speak plain HTTP."""

    base: BaseState
    memory: MemoryState | None = None
    merged: MergedState | None = None
    steps: StepsState | None = None
    certificate: CertificateState | None = None


class PortName(StrEnum):
    """The engine port that a token opens."""

    SERVING = "serving"
    STATE = "state"
    ADMIN = "admin"


class DrainReport(Wire):
    """Answer of the drain call."""

    state: Literal["draining"] = "draining"
    in_flight: int
