"""Builds snapshots for tests of the operator's core, and carries plans out on them as perfect engines would.

Called by tests only. Everything has a default, so that a test names what it is about.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lorafleet_contracts.admin import (
    AdapterReport,
    BaseState,
    EngineState,
    MemoryState,
    Tier,
    VersionPhase,
    VersionState,
)
from lorafleet_contracts.resources.adapter import LoraAdapterSpec, LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolSpec, LoraPoolStatus, Replicas
from lorafleet_contracts.resources.tenant import TenantSpec, TenantStatus
from lorafleet_operator.core.actions import Apply, Delete, Inspect, Load, Plan, Unload
from lorafleet_operator.core.snapshot import (
    Adapter,
    Attempt,
    EngineDefaults,
    Memory,
    Meta,
    Pool,
    PoolSnapshot,
    PoolTokens,
    Replica,
    Tenant,
    Workload,
)
from lorafleet_operator.core.sources import trust_mark

NOW = 1_800_000_000.0
SIZE = 1000
PREFIX = "http://assets/"
TOKENS = PoolTokens({"admin": ("a1",), "serving": ("s1", "s0"), "state": ("t1",)})


def digest_of(text: str) -> str:
    """A digest that only depends on `text`."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def make_meta(name: str, namespace: str = "demo", **changes: Any) -> Meta:
    """Metadata whose uid and age follow from the name."""
    fields: dict[str, Any] = {"uid": f"uid-{namespace}-{name}", "generation": 1, "created": "2026-11-30T00:00:00Z"}
    return Meta(namespace=namespace, name=name, **{**fields, **changes})


def make_pool(name: str = "smol", namespace: str = "demo", status: LoraPoolStatus | None = None, **spec: Any) -> Pool:
    """A CPU pool that allows http://assets/."""
    wanted = {
        "engine": {"dtype": "float32"},
        "baseModel": {"name": "smollm2", "source": {"uri": "http://assets/base"}},
        "sources": {"allow": [{"prefix": PREFIX}]},
        **spec,
    }
    return Pool(make_meta(name, namespace), LoraPoolSpec.model_validate(wanted), status or LoraPoolStatus())


def make_adapter(name: str, namespace: str = "demo", meta: Mapping[str, Any] | None = None, **spec: Any) -> Adapter:
    """An adapter of pool demo/smol from http://assets/NAME."""
    wanted = {"poolRef": {"name": "smol", "namespace": "demo"}, "source": {"uri": f"{PREFIX}{name}"}, **spec}
    return Adapter(
        make_meta(name, namespace, **(meta or {})),
        ("demo", "smol"),
        LoraAdapterSpec.model_validate(wanted),
        LoraAdapterStatus(),
    )


def make_tenant(name: str, namespace: str = "demo", **spec: Any) -> Tenant:
    """A tenant of pool demo/smol with one key."""
    wanted = {
        "poolRef": {"name": "smol", "namespace": "demo"},
        "apiKeys": [{"id": "k1", "sha256": "0" * 64}],
        **spec,
    }
    return Tenant(make_meta(name, namespace), ("demo", "smol"), TenantSpec.model_validate(wanted), TenantStatus())


def make_state(*versions: VersionState, budget: int = 10 * SIZE, **changes: Any) -> EngineState:
    """A ready engine's state with these versions."""
    there = (VersionPhase.RESIDENT, VersionPhase.DRAINING)
    used = sum(each.bytes for each in versions if each.phase in there and each.tier is Tier.GPU)
    memory = MemoryState(
        total=100 * SIZE, weights=50, activations=5, adapters=budget, adapters_used=used, kv=0, kv_tokens=64,
        kv_tokens_used=0,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "boot_id": "boot-1", "seq": 1, "full": True, "ready": True, "draining": False,
        "base": BaseState(name="smollm2"), "memory": memory, "versions": list(versions),
    }  # fmt: skip
    return EngineState(**{**fields, **changes})


def make_version(uid: str, digest: str, phase: VersionPhase = VersionPhase.RESIDENT, **changes: Any) -> VersionState:
    """One version on a replica, on its GPU unless said otherwise."""
    fields: dict[str, Any] = {"tier": Tier.GPU, "bytes": SIZE, "rank": 8}
    return VersionState(uid=uid, digest=digest, phase=phase, **{**fields, **changes})


def make_replica(index: int = 0, state: EngineState | None = None, **changes: Any) -> Replica:
    """A ready replica, empty unless a state is given."""
    fields: dict[str, Any] = {"name": f"smol-shared-{index}", "ready": True, "deleting": False, "current": True}
    return Replica(state=state or make_state(), **{**fields, **changes})


def make_snapshot(**changes: Any) -> PoolSnapshot:
    """One pool with one ready replica. Unless told otherwise, it wants as many as there are."""
    fields: dict[str, Any] = {
        "pool": make_pool(),
        "adapters": (),
        "tenants": (),
        "replicas": (make_replica(),),
        "namespaces": {"demo": {}},
        "defaults": EngineDefaults("registry/engine:1"),
        "tokens": TOKENS,
        **changes,
    }
    size = max(1, len(fields["replicas"]))
    pool = fields["pool"]
    if pool.spec is not None and pool.spec.replicas == Replicas():
        spec = pool.spec.model_copy(update={"replicas": Replicas(min=size)})
        fields["pool"] = replace(pool, spec=spec)
    return PoolSnapshot(**{"workloads": {"shared": Workload(size, settled=True, partition=size)}, **fields})


def report_for(uri: str, size: int = SIZE, **changes: Any) -> AdapterReport:
    """What a good adapter's inspection finds."""
    fields: dict[str, Any] = {
        "digest": digest_of(uri), "bytes": size, "rank": 8, "target_modules": ["q_proj", "v_proj"], "base": "smollm2",
    }  # fmt: skip
    return AdapterReport(**{**fields, **changes})


def carry_out(
    snapshot: PoolSnapshot, plan: Plan, now: float = NOW, sizes: Mapping[str, int] | None = None
) -> PoolSnapshot:
    """The snapshot after everything in the plan has worked. `sizes` maps adapter uids to packed bytes."""
    sizes = sizes or {}
    inspections, applied = dict(snapshot.memory.inspections), dict(snapshot.applied)
    loads, workloads = dict(snapshot.memory.loads), dict(snapshot.workloads)
    states = {each.name: each.state for each in snapshot.replicas}
    for action in plan.actions:
        match action:
            case Apply():
                applied[action.key] = action.fingerprint
            case Delete():
                applied.pop(action.key, None)
                workloads = {name: each for name, each in workloads.items() if action.key != f"StatefulSet/smol-{name}"}
            case Inspect():
                report = report_for(action.fetch.source.uri, sizes.get(action.key.uid, SIZE))
                mark = trust_mark(action.fetch.source.signers)
                inspections[action.key] = Attempt(pending=False, at=now, report=report, trust=mark)
            case Load() | Unload():
                state = states[action.target.replica]
                assert state is not None
                assert state.memory is not None
                versions = [each for each in state.versions if each.key != action.target.version]
                if isinstance(action, Load):
                    choice, uid = action.choice, action.target.uid
                    loads[action.target] = Attempt(pending=False, at=now, reason=choice.reason)
                    there = any(each.key == action.target.version and each.tier is Tier.GPU for each in state.versions)
                    versions.append(
                        make_version(
                            uid,
                            action.target.digest,
                            bytes=sizes.get(uid, SIZE),
                            tier=Tier.GPU if there else choice.tier,  # what is on the GPU stays until others need room
                            wanted=choice.tier,
                            pinned=choice.pinned,
                        )
                    )
                states[action.target.replica] = make_state(
                    *versions, budget=state.memory.adapters, boot_id=state.boot_id, seq=state.seq + 1
                )
    written = {(each.kind, each.uid): each.status for each in plan.statuses}
    return replace(
        snapshot,
        pool=replace(snapshot.pool, status=written.get(("LoraPool", snapshot.pool.meta.uid), snapshot.pool.status)),
        adapters=tuple(
            replace(each, status=written.get(("LoraAdapter", each.meta.uid), each.status)) for each in snapshot.adapters
        ),
        tenants=tuple(
            replace(each, status=written.get(("Tenant", each.meta.uid), each.status)) for each in snapshot.tenants
        ),
        replicas=tuple(replace(each, state=states[each.name]) for each in snapshot.replicas),
        applied=applied,
        workloads=workloads,
        memory=Memory(
            inspections=inspections,
            loads=loads,
            surplus={target: snapshot.memory.surplus.get(target, now) for target in plan.surplus},
            moved_at=now if plan.moves else snapshot.memory.moved_at,
        ),
    )
