"""Tenant: who may call which adapters with which keys. Pure data; crds/ is generated from it."""

from typing import Annotated, Final, Literal

from pydantic import Field

from lorafleet_contracts.conditions import Condition
from lorafleet_contracts.resources.schema import (
    DNS_LABEL_PATTERN,
    IMMUTABLE_POOL,
    SET,
    LabelSelector,
    PoolRef,
    Resource,
    SetName,
    map_list,
    rules,
)

AdapterName = Annotated[
    str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=127)
]
Isolation = Literal["Shared", "Dedicated"]
"""Whether a tenant's requests may run on replicas that answer others too."""


class TenantAdapters(Resource):
    """What the tenant may call: adapters of its own namespace by selector or name, shared ones as namespace/name."""

    selector: LabelSelector | None = None
    names: Annotated[list[AdapterName], Field(max_length=1024, json_schema_extra=SET)] = []
    base: bool = False


class ApiKey(Resource):
    """One API key by its SHA-256; the key itself is shown once, by `lorafleet key create`."""

    id: Annotated[str, Field(pattern=DNS_LABEL_PATTERN, min_length=1, max_length=63)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", max_length=64)]
    expires_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None


BurstRule = rules(("!has(self.burst) || has(self.requestsPerSecond)", "limits.burst goes with requestsPerSecond"))


class TenantLimits(Resource):
    """What all gateways together let in; without a field, as much as comes.

    `burst` requests may come at once (default: a second's worth). `tokensPerMinute` counts prompts and answers as the
    engines do, streams among them, and lets a minute's worth come at once. `concurrentRequests` are open at a time.
    """

    requests_per_second: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    burst: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    concurrent_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class TenantSpec(Resource):
    """The desired tenant. `isolation: Dedicated`: requests are answered by a set of replicas of its own and nobody
    else's, whatever the load.

    `weight` is its share of an engine's steps while tenants compete: twice the weight, twice the tokens.
    """

    pool_ref: Annotated[PoolRef, Field(json_schema_extra=IMMUTABLE_POOL)]
    adapters: TenantAdapters = TenantAdapters()
    api_keys: Annotated[list[ApiKey], Field(max_length=64, json_schema_extra=map_list("id"))] = []
    limits: Annotated[TenantLimits, Field(json_schema_extra=BurstRule)] = TenantLimits()
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    isolation: Isolation = "Shared"


ROUTED_STAGES: Final = frozenset({"CuttingOver", "Dedicated"})
"""Stages of a promotion in which gateways send the tenant's requests to its own set."""


class PromotionStatus(Resource):
    """Where a tenant's own set of replicas stands: `stage` and `reason` since `since`, `message` with the numbers.

    `set` is that set while there is one; gateways route to it in CuttingOver and Dedicated. `version` is the
    `uid@digest` that a merged set answers, of the files at `source`.
    """

    stage: Literal["Shared", "Warming", "Checking", "CuttingOver", "Dedicated", "Draining"]
    reason: Annotated[str, Field(min_length=1, max_length=64)]
    message: Annotated[str, Field(max_length=1024)] = ""
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    set: SetName | None = None
    version: Annotated[str, Field(max_length=200)] | None = None
    source: Annotated[str, Field(max_length=1024)] | None = None


class TenantStatus(Resource):
    """The verdict on what was observed: how many adapters and unexpired keys the tenant has.

    `isolation` is what is in force. A tenant that becomes Dedicated stays Shared until its own set takes over.
    """

    observed_generation: int | None = None
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=map_list("type"))] = []
    adapters: int = 0
    keys: int = 0
    isolation: Isolation | None = None
    promotion: PromotionStatus | None = None
