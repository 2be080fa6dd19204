"""LoraAdapter: one LoRA fine-tune of a pool's base model. Pure data; crds/ is generated from it."""

from typing import Annotated, Literal

from pydantic import Field

from lorafleet_contracts.conditions import Condition
from lorafleet_contracts.resources.schema import (
    ATOMIC,
    IMMUTABLE_POOL,
    Digest,
    LabelSelector,
    ModelName,
    ObjectName,
    PoolRef,
    Resource,
    SetName,
    SourceUri,
    map_list,
)


class SecretRef(Resource):
    """A Secret of the object's own namespace, labelled `lorafleet.io/source-credentials`."""

    name: ObjectName


class AdapterSource(Resource):
    """The adapter's files, and optionally the digest that they must have (`lorafleet digest DIR` prints it).

    The Secret of `credentialsSecretRef` has accessKeyId, secretAccessKey and sessionToken for S3, a token for https,
    the Hub and registries, or .dockerconfigjson for registries.
    """

    uri: SourceUri
    digest: Digest | None = None
    credentials_secret_ref: SecretRef | None = None


class SharedWith(Resource):
    """Namespaces whose tenants may name this adapter too; without it, only tenants of its own namespace."""

    namespace_selector: LabelSelector


class TrainedOn(Resource):
    """The base model's files that the adapter was trained on: `baseModel.digest` of a pool that may serve it."""

    digest: Digest


class LoraAdapterSpec(Resource):
    """The desired adapter. `model` is what a client sends as `model`; it defaults to the object's name.

    A `pinned` adapter never leaves the GPUs where it is, and is on so many replicas that it outlives the loss of one.
    Where not all fit on the GPU, adapters with a higher `priority` come before those that are merely used more.
    """

    pool_ref: Annotated[PoolRef, Field(json_schema_extra=IMMUTABLE_POOL)]
    model: ModelName | None = None
    source: AdapterSource
    trained_on: TrainedOn | None = None
    shared_with: SharedWith | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    pinned: bool = False
    suspend: bool = False
    min_replicas: Annotated[int, Field(ge=1, le=64)] = 1


class ReplicaCounts(Resource):
    """On how many replicas the serving version is, and on how many it should be."""

    resident: int = 0
    desired: int = 0


class Placement(Resource):
    """One replica, the version it holds, and why it was chosen."""

    replica: Annotated[str, Field(max_length=253)]
    digest: Digest
    reason: Annotated[str, Field(max_length=64)] = ""


class VersionStatus(Resource):
    """One version that is not gone yet."""

    digest: Digest
    state: Literal["Loading", "Serving", "Draining"]


class PopularityStatus(Resource):
    """How much an adapter is used, coarsely: log2 of its requests and of its tokens an hour, as a slow mean."""

    requests: Annotated[int, Field(ge=0, le=63)]
    tokens: Annotated[int, Field(ge=0, le=63)]


class LoraAdapterStatus(Resource):
    """The verdict on what was observed.

    `verifiedDigest` is what inspection found for `verifiedGeneration`, with signatures by the signers whose mark
    `verifiedBy` is (absent: none were asked for); `digest` is the version that tenants get, `set`
    the set of replicas where (absent: shared). `rankClass` is the ceiling of the class that the rank belongs to.
    """

    observed_generation: int | None = None
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=map_list("type"))] = []
    rank: int | None = None
    rank_class: int | None = None
    set: SetName | None = None
    bytes: int | None = None
    target_modules: Annotated[
        list[Annotated[str, Field(max_length=64)]], Field(max_length=16, json_schema_extra=ATOMIC)
    ] = []
    digest: Digest | None = None
    verified_digest: Digest | None = None
    verified_generation: int | None = None
    verified_by: Annotated[str, Field(max_length=64)] | None = None
    replicas: ReplicaCounts | None = None
    placements: Annotated[list[Placement], Field(max_length=8, json_schema_extra=ATOMIC)] = []
    versions: Annotated[list[VersionStatus], Field(max_length=8, json_schema_extra=map_list("digest"))] = []
    popularity: PopularityStatus | None = None
