"""`spec.tenancy` of a LoraPool: what one namespace may ask of it. Pure data; contracts/tenancy.py holds to it."""

from typing import Annotated

from pydantic import Field

from lorafleet_contracts.resources.schema import Quantity, Resource
from lorafleet_contracts.resources.tenant import BurstRule, Isolation, TenantLimits


class Tenancy(Resource):
    """What the objects of one namespace may ask for together; what is absent is not bounded. The oldest come first.

    `maxPriority` is for each adapter; the others are sums: bytes of pinned adapters (on one replica), `minReplicas`,
    tenants' weights, and their limits, which they must then set. `isolation`: which kinds tenants may ask for.
    """

    max_priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    max_pinned_bytes: Quantity | None = None
    max_min_replicas: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_weight: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    max_limits: Annotated[TenantLimits, Field(json_schema_extra=BurstRule)] = TenantLimits()
    isolation: Annotated[
        list[Isolation], Field(min_length=1, max_length=2, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ["Shared", "Dedicated"]
