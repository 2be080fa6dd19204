"""Turns Kubernetes objects into records. Called by the reflectors; raises ValueError for what it cannot read.

Reads only the fields it needs, so that a newer API server's fields never hide an object from an older gateway.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lorafleet_contracts.names import (
    ENGINE_CA_KEY,
    LABEL_POOL,
    LABEL_SET,
    SERVING_TLS_PORT,
    SHARED_SET,
    EnginePort,
)
from lorafleet_contracts.resources.pool import AllowedNamespaces, EngineSpec
from lorafleet_contracts.resources.schema import LabelSelector, Resource
from lorafleet_contracts.resources.tenancy import Tenancy
from lorafleet_contracts.resources.tenant import ROUTED_STAGES, TenantLimits
from lorafleet_contracts.tenancy import TenantClaim
from lorafleet_gateway.core.limits import read_limits
from lorafleet_gateway.core.records import Adapter, ObjectKey, Pool, Replica, Slice, StoredKey, Tenant

Object = dict[str, Any]


def read_pool(found: Object) -> Pool:
    """A LoraPool."""
    base = found["spec"]["baseModel"]
    return Pool(
        key=_key(found),
        uid=found["metadata"]["uid"],
        created=int(_seconds(found["metadata"]["creationTimestamp"])),
        base=base["name"],
        aliases=frozenset(base.get("aliases", ())),
        allowed=AllowedNamespaces.model_validate(found["spec"].get("allowedNamespaces", {})),
        tenancy=Tenancy.model_validate(_known(found["spec"].get("tenancy", {}), Tenancy)),
        window=found["spec"].get("engine", {}).get("maxModelLen", EngineSpec().max_model_len),
    )


def read_adapter(found: Object) -> Adapter:
    """A LoraAdapter."""
    metadata, spec = found["metadata"], found["spec"]
    shared = spec.get("sharedWith")
    return Adapter(
        key=_key(found),
        uid=metadata["uid"],
        created=int(_seconds(metadata["creationTimestamp"])),
        pool=_pool_ref(found),
        model=spec.get("model") or metadata["name"],
        digest=None if spec.get("suspend") else found.get("status", {}).get("digest"),
        labels=tuple(sorted(metadata.get("labels", {}).items())),
        shared_with=LabelSelector.model_validate(shared["namespaceSelector"]) if shared else None,
        set=found.get("status", {}).get("set") or SHARED_SET,
    )


def read_tenant(found: Object) -> Tenant:
    """A Tenant."""
    adapters = found["spec"].get("adapters", {})
    selector = adapters.get("selector")
    status = found.get("status", {})
    promotion = status.get("promotion", {})
    limits = TenantLimits.model_validate(_known(found["spec"].get("limits", {}), TenantLimits))
    weight = found["spec"].get("weight", 1)
    created = int(_seconds(found["metadata"]["creationTimestamp"]))
    return Tenant(
        key=_key(found),
        pool=_pool_ref(found),
        selector=None if selector is None else LabelSelector.model_validate(selector),
        names=frozenset(adapters.get("names", ())),
        base=adapters.get("base", False),
        keys=tuple((each["id"], _stored_key(each)) for each in found["spec"].get("apiKeys", ())),
        own=promotion.get("set"),
        cut_over=promotion.get("stage") in ROUTED_STAGES,
        # What is in force, which the spec says until the operator has: so nothing of a new tenant ever runs elsewhere.
        isolated=(status.get("isolation") or found["spec"].get("isolation")) == "Dedicated",
        limits=read_limits(limits),
        claim=TenantClaim(_key(found), created, limits, found["spec"].get("isolation", "Shared"), weight),
        weight=weight,
    )


def read_namespace(found: Object) -> tuple[tuple[str, str], ...]:
    """A Namespace's labels, sorted."""
    return tuple(sorted(found["metadata"].get("labels", {}).items()))


def read_slice(found: Object) -> Slice | None:
    """An EndpointSlice of an engine set; None for one without our labels."""
    labels = found["metadata"].get("labels", {})
    if LABEL_POOL not in labels or LABEL_SET not in labels:
        return None
    ports = {each.get("name"): each.get("port") for each in found.get("ports") or ()}
    tls = ports.get(SERVING_TLS_PORT)  # pods without a port of this name are in other slices
    serving = tls or ports.get("serving") or int(EnginePort.SERVING)
    state = ports.get("state") or int(EnginePort.STATE)
    ready: list[Replica] = []
    waiting: list[Replica] = []
    for endpoint in found.get("endpoints") or ():
        conditions = endpoint.get("conditions", {})
        if conditions.get("terminating"):
            continue
        host = _host(endpoint["addresses"][0])
        replica = Replica(f"{host}:{serving}", f"{host}:{state}", tls is not None)
        # not `ready`: publishNotReadyAddresses makes that always true
        (waiting if conditions.get("serving") is False else ready).append(replica)
    pool = (found["metadata"]["namespace"], labels[LABEL_POOL])
    return Slice(pool, labels[LABEL_SET], tuple(ready), tuple(waiting))


def read_roots(found: Object) -> str:
    """Who signs for engines (PEM), from the ConfigMap that the operator keeps."""
    return str(found["data"][ENGINE_CA_KEY])


def _key(found: Object) -> ObjectKey:
    return found["metadata"]["namespace"], found["metadata"]["name"]


def _pool_ref(found: Object) -> ObjectKey:
    reference = found["spec"]["poolRef"]
    return reference.get("namespace") or found["metadata"]["namespace"], reference["name"]


def _stored_key(entry: Mapping[str, str]) -> StoredKey:
    expires = entry.get("expiresAt")
    return StoredKey(entry["sha256"], _seconds(expires) if expires else None)


def _known(found: Object, model: type[Resource]) -> Object:
    """Without the fields of a newer version."""
    return {name: found[name] for name in found.keys() & {each.alias for each in model.model_fields.values()}}


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
