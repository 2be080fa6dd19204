"""What the api and loop processes say to each other: plain frozen values, pickled over a pipe.

Both sides import this file and nothing of each other. It may hold no behaviour, no torch and no wire
models: HTTP shapes live in `server/`, tensors behind `loop.py`. Every message names what it answers
(`request_id` or `key`), so neither side has to remember the order of what it sent.

Life of a request:  Generate -> (Tokens | StepTokens)* -> Tokens(finish_reason, usage)   or   Generate -> Rejected
Life of a version:  LoadAdapter -> AdapterLoaded | AdapterRejected;  UnloadAdapter -> AdapterUnloaded (after its
last request has ended; until then the version is "draining" and new requests for it are refused).
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from lorafleet_contracts.capacity import MemoryBudget, ModelShape
from lorafleet_engine.stepsums import StepSums

VersionKey: TypeAlias = str
"""One version of one adapter: `{uid}@{digest}`. Engines know versions, never names."""

FinishReason = Literal["stop", "length", "cancelled", "error"]
RejectCode = Literal[
    "version_missing", "context_length_exceeded", "does_not_fit", "draining", "queue_full", "invalid", "engine_died"
]
AdapterRejectCode = Literal["does_not_fit", "rank_above_limit", "wrong_model", "bad_blob", "draining"]
VersionPhase = Literal["loading", "resident", "draining"]
Quantization = Literal["none", "fp8"]
PrefixSharing = Literal["off", "tenant", "shared"]
"""Who finds the KV blocks of equal beginnings that were computed before: nobody, the same tenant, or every tenant."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Hard caps of one step and of the queue behind it.

    `tokens` counts prompt and decode tokens together and exceeds `sequences`, those of a step and of what holds KV;
    `rank_sum` counts the true ranks of a step's distinct adapters; above `waiting` requests are Rejected queue_full.
    While tenants compete a step takes at most `contended` tokens of prompts, so that whoever comes next is soon served.
    """

    tokens: int = 512
    sequences: int = 64
    distinct_adapters: int = 128
    rank_sum: int = 4096
    waiting: int = 4096
    contended: int = 512


DEFAULT_LIMITS: dict[Literal["cpu", "cuda"], StepLimits] = {
    "cpu": StepLimits(tokens=160, sequences=32),
    "cuda": StepLimits(tokens=2048, sequences=256),
}
"""A step computes at most so much at a time: on one core 160 tokens take about 0.4 s, which is how long a prompt may
keep the other answers waiting."""


@dataclass(frozen=True, slots=True)
class MergeConfig:
    """Start with one adapter in the weights: `blob` holds it in float32."""

    blob: "BlobRef"


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """All that a loop process needs to start.

    `memory_bytes` is everything the engine may hold (weights, activations, KV, adapters); None on a CUDA device
    means `utilization_percent` of the device's memory. `threads` is for CPU kernels. `limits` None means what suits the
    device: short steps on a CPU, wide ones on a GPU. `quantization` is that of the base's projections. With `merge` the
    weights are the base's plus one adapter, and a request without an adapter is answered by both. `probes` are token
    ids: a merged adapter, and on a quantised base every adapter, is checked on them. `tensor_parallel` processes share
    the model, on as many CUDA devices; `memory_bytes` is then that of all of them together.
    """

    model_dir: str
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    quantization: Quantization = "none"
    prefix_cache: PrefixSharing = "off"
    max_model_len: int = 2048
    memory_bytes: int | None = None
    utilization_percent: int = 92
    threads: int = 1
    limits: StepLimits | None = None
    state_interval_s: float = 0.5
    merge: MergeConfig | None = None
    probes: tuple[tuple[int, ...], ...] = ()
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one answer is drawn. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off.

    `logprobs`: None = none, 0 = the chosen token's, n = also the n most likely (of the model's own distribution,
    before temperature and penalties). `stop_token_ids` come on top of the model's end tokens; `ignore_eos`
    switches the latter off. Stop strings and n > 1 are the api's business.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A packed adapter in a file both processes can map (a slab in shared memory, or a cache directory).

    The bytes are one array of `dtype`: for each layer, for each of capacity.PROJECTIONS with rank r > 0, r rows of A
    (length in), then r rows of B transposed (length out) with the scale folded in. `module_ranks[layer][module]` is
    that r, so it is the whole layout; `bytes` is its exact length; `rank` the largest. The file must stay unchanged
    until AdapterLoaded or AdapterRejected is received, then it is the sender's to delete.
    """

    path: str
    bytes: int
    dtype: Literal["float32", "bfloat16"]
    rank: int
    module_ranks: tuple[tuple[int, ...], ...]


# --- to the loop ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer `prompt_ids` with a resident version, or with the base (`adapter` None), for a tenant of this weight."""

    request_id: str
    adapter: VersionKey | None
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    tenant: str = ""
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a request early; answered by Tokens(finish_reason="cancelled") if it was still live, else by nothing."""

    request_id: str


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """Make a packed version resident; loading a resident key again answers AdapterLoaded at once, loading one that is
    being loaded is answered together with the first."""

    key: VersionKey
    blob: BlobRef


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """Free a version once its last request ends; an unknown key is answered at once with bytes_freed 0."""

    key: VersionKey


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new requests, finish the live ones, then send Drained. The loop goes on reporting its state."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Leave the loop now; live requests are dropped. Closing the pipe means the same."""


ToLoop: TypeAlias = Generate | Cancel | LoadAdapter | UnloadAdapter | Drain | Shutdown


# --- from the loop -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `logprob` and `top` (id, logprob; most likely first) only when asked for."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; the end token that stopped it counts as generated."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """News of one request. The last one carries `finish_reason` and `usage`.

    With finish_reason "stop" the last token is the end token itself (`stop_token_id`), which has no text.
    `queue_s` (first message only) is the time from arrival to the first step; `cached` tokens of the prompt were found
    computed. `error` says what went wrong for "error".
    """

    request_id: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    stop_token_id: int | None = None
    queue_s: float | None = None
    cached: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """One more token for each of `request_ids`, of whom a step has no other news: one message for all."""

    request_ids: tuple[str, ...]
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request that was never started."""

    request_id: str
    code: RejectCode
    message: str


@dataclass(frozen=True, slots=True)
class AdapterLoaded:
    """The version can be used; `bytes` are its own (BlobRef.bytes), `resident_bytes` those of its pages."""

    key: VersionKey
    bytes: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class AdapterRejected:
    """The version was not loaded; for does_not_fit the bytes `needed` and `free` of budget.adapters."""

    key: VersionKey
    code: AdapterRejectCode
    message: str
    needed: int = 0
    free: int = 0


@dataclass(frozen=True, slots=True)
class Quality:
    """Logits on the probe set on the quantised base against the unquantised one, both with the adapter."""

    rel_l2: float
    same_argmax: float
    positions: int


@dataclass(frozen=True, slots=True)
class AdapterChecked:
    """Some time after AdapterLoaded on a quantised base: what the rounding of the base does to this adapter."""

    key: VersionKey
    quality: Quality


@dataclass(frozen=True, slots=True)
class AdapterUnloaded:
    """The version is gone; `bytes_freed` are its own bytes; its pages are back on the free list."""

    key: VersionKey
    bytes_freed: int


@dataclass(frozen=True, slots=True)
class Drained:
    """After Drain: nothing is live any more."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Logits on the probe set against the model in fp32 with the same adapter: relative L2 of the `merged` engine's and
    of the `unmerged` engine's; `same_argmax` is the share of `positions` where the merged one has the same best token.
    """

    merged: float
    unmerged: float
    same_argmax: float
    positions: int


@dataclass(frozen=True, slots=True)
class LoopReady:
    """First message: the weights are in place and steps can run. A page holds one KV block of all layers. `shape` is
    the whole model's.

    `parity` is there when an adapter was merged.
    """

    budget: MemoryBudget
    page_bytes: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    shape: ModelShape
    parity: Parity | None = None


@dataclass(frozen=True, slots=True)
class LoopFailed:
    """Last message: the loop could not start, or met an error it cannot go on from. The engine exits with `status`."""

    message: str
    status: int = 1


@dataclass(frozen=True, slots=True)
class VersionState:
    """One version on the device. `requests` are those that use it now, `served` all that ever finished."""

    key: VersionKey
    phase: VersionPhase
    rank: int
    bytes: int
    resident_bytes: int
    requests: int
    served: int


@dataclass(frozen=True, slots=True)
class LoopCounters:
    """Monotonic since the loop started."""

    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    cancelled: int = 0
    rejected: int = 0
    loads: int = 0
    unloads: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LoopState:
    """Snapshot after a change, at most every `state_interval_s`, and at once after a load, unload or drain.

    `adapter_bytes` are the true bytes of all resident versions: the next one must fit into budget.adapters minus them.
    KV and adapters share one free list of pages. `step_*` describe the last step.
    """

    budget: MemoryBudget
    adapter_bytes: int
    pages: int
    pages_free: int
    pages_adapters: int
    pages_kv: int
    running: int
    waiting: int
    versions: tuple[VersionState, ...]
    counters: LoopCounters
    step_ms: float
    step_adapters: int
    step_rank_sum: int
    draining: bool
    sums: StepSums = field(default_factory=StepSums)


FromLoop: TypeAlias = (
    Tokens
    | StepTokens
    | Rejected
    | AdapterLoaded
    | AdapterRejected
    | AdapterChecked
    | AdapterUnloaded
    | Drained
    | LoopReady
    | LoopFailed
    | LoopState
)
