"""LoraPool: one base model served by a set of engine replicas. Pure data; crds/ is generated from it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from lorafleet_contracts.conditions import Condition
from lorafleet_contracts.resources.schema import (
    ATOMIC,
    PRESERVED,
    SET,
    Digest,
    Duration,
    LabelMap,
    LabelSelector,
    ModelName,
    Quantity,
    Resource,
    SourceUri,
    map_list,
    rules,
)
from lorafleet_contracts.resources.sources import Sources, Trust
from lorafleet_contracts.resources.tenancy import Tenancy

Preserved = Annotated[dict[str, Any], Field(json_schema_extra=PRESERVED)]
Volume = Annotated[
    dict[str, Any],
    Field(
        json_schema_extra={
            **PRESERVED,
            "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 63}},
            "required": ["name"],
        }
    ),
]
"""A volume as Kubernetes has it; its name is the key by which lists of them are merged."""
Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SetKind = Literal["Shared", "RankClass", "Private", "Merged"]
"""Why a set of replicas is there: always, for a rank class, for a tenant, for a tenant's one adapter."""
Immutable = rules(("self == oldSelf", "immutable: create a new LoraPool instead"))
Rate = Annotated[str, Field(pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?$", max_length=20)]
"""A number per second, as a decimal."""
SelectorRule = rules(("(self.from == 'Selector') == has(self.selector)", "selector goes with from: Selector"))
DigestRule = rules(
    (
        "has(self.digest) == has(oldSelf.digest) && (!has(self.digest) || self.digest == oldSelf.digest)",
        "baseModel.digest is immutable: create a new LoraPool instead",
    )
)
ReplicasRule = rules(
    ("!has(self.max) || self.max >= self.min", "replicas.max must not be below replicas.min"),
    (
        "self.mode == 'External' || self.desired == 1",
        "replicas.desired (the scale subresource) counts with mode: External only; a Managed pool sizes itself between "
        "replicas.min and replicas.max: change those, or set mode: External",
    ),
)
DtypeRule = rules(
    ("self.device != 'CPU' || self.dtype == 'float32'", "device: CPU needs dtype: float32"),
    ("self.quantization == 'None' || self.dtype == 'bfloat16'", "quantization: FP8 needs dtype: bfloat16"),
)

HysteresisRule = rules(
    ("self.demoteAtPercent < self.promoteAtPercent", "demoteAtPercent must be below promoteAtPercent")
)


class BaseModelSource(Resource):
    """Where the base model's files are: `pvc://VOLUME/path`, `file:///path`, `http(s)://host/path/`, `s3://bucket/path/`,
    `hf://org/name@revision` or `oci://registry/repository@sha256:...`. No credentials are used for it.
    """

    uri: SourceUri


class BaseModelSpec(Resource):
    """The base model: published name, further names, files, and optionally the digest they must have.

    `weights`: bytes of its weights at `engine.dtype`. Declared, a slice of a GPU, or a `diskCache` that the base is
    fetched into, that can't hold them is refused before any pod exists; else only once some engine knows the base.
    """

    name: Annotated[ModelName, Field(json_schema_extra=Immutable)]
    aliases: Annotated[list[ModelName], Field(max_length=16, json_schema_extra=SET)] = []
    source: Annotated[BaseModelSource, Field(json_schema_extra=Immutable)]
    digest: Digest | None = None
    weights: Quantity | None = None


class EngineMemory(Resource):
    """Memory of one replica: `hostCache` is shared memory for packed adapters, `diskCache` verified files on disk.

    The pod may take twice `diskCache` of ephemeral storage: downloads lie beside the cache until they are verified.
    """

    gpu_utilization_percent: Annotated[int, Field(ge=10, le=98)] = 92
    host_cache: Quantity = "1Gi"
    disk_cache: Quantity = "40Gi"


class ResourceRequirements(Resource):
    """Kubernetes resource requests and limits of the engine container."""

    limits: Annotated[dict[str, Annotated[str, Field(max_length=32)]], Field(max_length=16)] = {}
    requests: Annotated[dict[str, Annotated[str, Field(max_length=32)]], Field(max_length=16)] = {}


class EnvVar(Resource):
    """A plain environment variable of the engine container."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
    value: Annotated[str, Field(max_length=4096)] = ""


class LocalObjectReference(Resource):
    """A reference to an object of the same namespace."""

    name: Annotated[str, Field(min_length=1, max_length=253)]


class EnginePod(Resource):
    """Typed overrides of the engine pods."""

    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    image_pull_secrets: Annotated[
        list[LocalObjectReference], Field(max_length=8, json_schema_extra=map_list("name"))
    ] = []
    resources: ResourceRequirements = ResourceRequirements()
    node_selector: LabelMap = {}
    tolerations: Annotated[list[Preserved], Field(max_length=16, json_schema_extra=ATOMIC)] = []
    affinity: Preserved | None = None
    runtime_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    volumes: Annotated[list[Volume], Field(max_length=16, json_schema_extra=map_list("name"))] = []
    env: Annotated[list[EnvVar], Field(max_length=32, json_schema_extra=map_list("name"))] = []


class EngineSpec(Resource):
    """How the engine runs. `device: Auto` takes CUDA when the pod asks for a GPU resource, else the CPU.

    `tensorParallel` GPUs of one pod share the model; it must divide the base's heads of keys and values.
    `quantization: FP8` rounds the base's projections to 8 bits; an adapter's QualityChecked says what that does to it.
    `prefixCache` lets equal beginnings be computed once: for each tenant, for all of them together, or not.
    """

    device: Literal["Auto", "CPU", "CUDA"] = "Auto"
    dtype: Annotated[Literal["bfloat16", "float32"], Field(json_schema_extra=Immutable)] = "bfloat16"
    quantization: Annotated[Literal["None", "FP8"], Field(json_schema_extra=Immutable)] = "None"
    tensor_parallel: Annotated[int, Field(ge=1, le=16, json_schema_extra=Immutable)] = 1
    max_model_len: Annotated[int, Field(ge=16, le=1_048_576)] = 8192
    prefix_cache: Literal["PerTenant", "Shared", "Off"] = "PerTenant"
    memory: EngineMemory = EngineMemory()
    pod: EnginePod = EnginePod()


class Replicas(Resource):
    """How many engine replicas the shared set keeps: between `min` and `max`; without `max` exactly `min`.

    `redundancy` is how many may be lost without a pinned or busy adapter losing its last copy, or the load its room.
    `mode: Managed` follows the load: up at once, down when fewer were enough for `scaleDownAfter`. `External` follows
    `desired`, the scale subresource (`kubectl scale`, an autoscaler); there an absent `max` bounds nothing.
    """

    min: Annotated[int, Field(ge=1, le=1000)] = 1
    max: Annotated[int, Field(ge=1, le=1000)] | None = None
    redundancy: Annotated[int, Field(ge=0, le=64)] = 1
    mode: Literal["Managed", "External"] = "Managed"
    desired: Annotated[int, Field(ge=1, le=1000)] = 1
    scale_down_after: Duration = "5m"


class PlacementSpec(Resource):
    """How much may be moved for evenness and popularity; what must be somewhere is never held back."""

    max_moves_per_hour: Annotated[int, Field(ge=0, le=3600)] = 60


class AllowedNamespaces(Resource):
    """Whose adapters and tenants the pool accepts besides those of its own namespace (as Gateway API's routes)."""

    from_: Annotated[Literal["Same", "All", "Selector"], Field(alias="from")] = "Same"
    selector: LabelSelector | None = None


class RankClasses(Resource):
    """Classes of adapters by rank: each belongs to the smallest ceiling that holds it, and is refused above the last.

    Without ceilings there is one class for all. `split: Auto` gives the upper classes replicas of their own when the
    lowest one would break `slo.itl` beside them for `splitAfter`; `mergeAfter` is the way back.
    """

    ceilings: Annotated[
        list[Annotated[int, Field(ge=1, le=4096)]],
        Field(max_length=8, json_schema_extra=SET),
    ] = []
    split: Literal["Auto", "Never"] = "Auto"
    split_after: Duration = "5m"
    merge_after: Duration = "30m"


class ServiceLevel(Resource):
    """What the pool aims at. `itl`: 99 % of the pauses between two tokens of an answer are no longer.

    `ttft`: 95 % of the first tokens come within it; `coldLoad`: 95 % of the waits of requests for an adapter that is
    not on the GPU. These two are shown and alerted on; no decision rests on them.
    """

    ttft: Duration = "500ms"
    itl: Duration = "30ms"
    cold_load: Duration = "500ms"


class Promotion(Resource):
    """When a tenant gets replicas of its own: its load is at least `promoteAtPercent` of what one replica of the plain
    base carries for `promoteAfter`; and gives them back: below `demoteAtPercent` for `demoteAfter`.

    `maxDedicated` bounds the replicas of all tenants' own sets together, those of `isolation: Dedicated` among them.
    """

    enabled: bool = True
    promote_at_percent: Annotated[int, Field(ge=1, le=1000)] = 60
    promote_after: Duration = "15m"
    demote_at_percent: Annotated[int, Field(ge=0, le=1000)] = 30
    demote_after: Duration = "30m"
    max_dedicated: Annotated[int, Field(ge=0, le=1000)] = 2


class DedicatedPod(Resource):
    """What tenants' own replicas have instead of the pool's `engine.pod`: a MIG slice, other nodes."""

    resources: ResourceRequirements | None = None
    node_selector: LabelMap | None = None
    tolerations: Annotated[list[Preserved], Field(max_length=16, json_schema_extra=ATOMIC)] | None = None
    affinity: Preserved | None = None
    runtime_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None


class DedicatedSets(Resource):
    """How tenants' own sets differ from the shared one."""

    pod: DedicatedPod = DedicatedPod()


class LoraPoolSpec(Resource):
    """The desired pool."""

    base_model: Annotated[BaseModelSpec, Field(json_schema_extra=DigestRule)]
    engine: Annotated[EngineSpec, Field(json_schema_extra=DtypeRule)] = EngineSpec()
    replicas: Annotated[Replicas, Field(json_schema_extra=ReplicasRule)] = Replicas()
    placement: PlacementSpec = PlacementSpec()
    rank_classes: RankClasses = RankClasses()
    slo: ServiceLevel = ServiceLevel()
    promotion: Annotated[Promotion, Field(json_schema_extra=HysteresisRule)] = Promotion()
    dedicated: DedicatedSets = DedicatedSets()
    target_modules: Annotated[list[Projection], Field(min_length=1, max_length=7, json_schema_extra=SET)] = [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]
    allowed_namespaces: Annotated[AllowedNamespaces, Field(json_schema_extra=SelectorRule)] = AllowedNamespaces()
    sources: Sources = Sources()
    tenancy: Tenancy = Tenancy()
    trust: Trust = Trust()


class EngineSetStatus(Resource):
    """One set of replicas inside the pool: how many are there, ready and `desired`, and why so many."""

    name: Annotated[str, Field(max_length=63)]
    kind: SetKind = "Shared"
    ceiling: int | None = None
    replicas: int = 0
    ready: int = 0
    desired: int = 0
    message: Annotated[str, Field(max_length=1024)] = ""


class ShapeStatus(Resource):
    """The base's sizes, as the first engine that loaded it has told (contracts/capacity.py: ModelShape)."""

    layers: Annotated[int, Field(ge=1)]
    hidden: Annotated[int, Field(ge=1)]
    intermediate: Annotated[int, Field(ge=1)]
    heads: Annotated[int, Field(ge=1)]
    kv_heads: Annotated[int, Field(ge=1)]
    head_dim: Annotated[int, Field(ge=1)]
    vocab: Annotated[int, Field(ge=1)]
    tied_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False


class BudgetForecast(Resource):
    """What was predicted of the same replica by the base's shape; the most that the two differ by, rounded up."""

    weights: int
    adapters: int
    kv_tokens: int
    difference_percent: int


class BudgetStatus(Resource):
    """One replica's memory as the engines report it: bytes, and KV tokens."""

    weights: int
    activations: int
    adapters: int
    kv_tokens: int
    total: int | None = None
    predicted: BudgetForecast | None = None


class CapacityStatus(Resource):
    """What one replica does per second with the plain base: requests (`value`) and, once measured, `tokens` of prompts
    and answers. Adapters take `penaltyPercent` of it; absent: the figures are those beside the adapters as they are.

    Assumed: the shipped prior, until replicas were seen at their limit.
    """

    value: Rate
    tokens: Rate | None = None
    source: Literal["Assumed", "Measured"]
    penalty_percent: Annotated[int, Field(ge=0, le=99)] | None = None


class RankClassesStatus(Resource):
    """Which rank classes have replicas of their own, by ceiling; `wanted` is what the forecast asks for since `since`.

    `message` has the numbers of the last change of either.
    """

    split: Annotated[list[int], Field(max_length=8, json_schema_extra=ATOMIC)] = []
    wanted: Annotated[list[int], Field(max_length=8, json_schema_extra=ATOMIC)] = []
    reason: Annotated[str, Field(min_length=1, max_length=64)]
    message: Annotated[str, Field(max_length=1024)] = ""
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class LoraPoolStatus(Resource):
    """The verdict on what was observed. Replicas and selector are the shared set's; `sets` has all of them."""

    observed_generation: int | None = None
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=map_list("type"))] = []
    replicas: int = 0
    ready_replicas: int = 0
    selector: Annotated[str, Field(max_length=512)] = ""
    sets: Annotated[list[EngineSetStatus], Field(max_length=16, json_schema_extra=map_list("name"))] = []
    budget: BudgetStatus | None = None
    shape: ShapeStatus | None = None
    capacity: CapacityStatus | None = None
    rank_classes: RankClassesStatus | None = None
