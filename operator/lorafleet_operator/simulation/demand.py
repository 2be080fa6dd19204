"""Who may call what, and what the adapters' files are like. Called by `lorafleet plan` before anything is simulated."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lorafleet_contracts.capacity import ModelShape, adapter_bytes, shard_shape
from lorafleet_contracts.forecast import Member
from lorafleet_contracts.names import BASE_MODEL
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_operator.core.snapshot import Adapter, Tenant
from lorafleet_operator.core.tenants import index_adapters, resolve
from lorafleet_operator.simulation.calls import Files
from lorafleet_operator.simulation.traffic import Arrivals, Caller


class NothingToPlanError(Exception):
    """The manifests give no traffic anywhere to go; the message says why."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Who may call what: `groups` are places in `callers`, one group an adapter, in the order of the manifests."""

    callers: tuple[Caller, ...]
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Ranks of adapters that no cluster has verified: by namespace/name, else the one for all others."""

    otherwise: int
    named: Mapping[str, int]


def find_demand(
    adapters: Sequence[Adapter], tenants: Sequence[Tenant], namespaces: Mapping[str, Mapping[str, str]]
) -> Demand:
    """Every tenant's adapters, as the gateway resolves them. Raises NothingToPlanError where there are none at all."""
    index = index_adapters(list(adapters))
    allowed: dict[str, list[str]] = defaultdict(list)
    for tenant in tenants:
        if tenant.spec is None:
            continue
        name = f"{tenant.meta.namespace}/{tenant.meta.name}"
        found, _ = resolve(tenant.spec, tenant.meta.namespace, index, namespaces)
        for uid in found:
            allowed[uid].append(name)
        if tenant.spec.adapters.base:
            allowed[BASE_MODEL].append(name)
    uids = [each.meta.uid for each in adapters if each.meta.uid in allowed] or [BASE_MODEL]
    if not allowed[uids[0]]:
        raise NothingToPlanError("no Tenant of this pool may call any of its adapters, nor the base (spec.adapters)")
    callers: list[Caller] = []
    groups: list[tuple[int, ...]] = []
    for uid in uids:
        groups.append(tuple(range(len(callers), len(callers) + len(allowed[uid]))))
        callers += [Caller(tenant, uid) for tenant in allowed[uid]]
    return Demand(tuple(callers), tuple(groups))


def assume_files(
    spec: LoraPoolSpec,
    adapters: Sequence[Adapter],
    shape: ModelShape,
    ranks: Ranks,
    known: Mapping[str, LoraAdapterStatus],
) -> dict[str, Files]:
    """What each adapter is like: as a cluster has verified it, else of the assumed rank on all the pool's modules."""
    shard = shard_shape(shape, spec.engine.tensor_parallel)
    dtype_bytes = 2 if spec.engine.dtype == "bfloat16" else 4
    files = {}
    for adapter in adapters:
        meta, status = adapter.meta, known.get(adapter.meta.uid, LoraAdapterStatus())
        rank = status.rank or ranks.named.get(f"{meta.namespace}/{meta.name}", ranks.otherwise)
        modules = tuple(status.target_modules) or tuple(spec.target_modules)
        size = status.bytes or adapter_bytes(shard, rank, modules, dtype_bytes)
        uri = adapter.spec.source.uri if adapter.spec else ""
        digest = adapter.spec.source.digest if adapter.spec else None
        files[meta.uid] = Files(uri, size, rank, modules, spec.base_model.name, digest)
    return files


def members_of(callers: Sequence[Caller], arrivals: Arrivals, files: Mapping[str, Files]) -> list[Member]:
    """The adapters' ranks with the share of all requests that each gets."""
    counts: dict[str, int] = defaultdict(int)
    for caller, requests in zip(callers, np.bincount(arrivals.callers, minlength=len(callers)).tolist(), strict=True):
        counts[caller.adapter] += requests
    return [Member(files[uid].rank, counts[uid] / len(arrivals)) for uid in counts if uid in files]
