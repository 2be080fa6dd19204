"""Every state that the operator's core gives the three kinds, as objects of the API server. Used by tests/gitops.

`python -m tests.gitops.states` writes them beside the health checks of Argo CD: the fixtures are what the operator
says, never what somebody thought it would say.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from lorafleet_contracts.admin import BaseState, Problem, ProblemCode
from lorafleet_contracts.crd import UNSEEN
from lorafleet_contracts.names import GROUP, VERSION
from lorafleet_operator.core.planning import plan_orphans, plan_pool
from lorafleet_operator.core.snapshot import (
    Adapter,
    Attempt,
    InspectionKey,
    Memory,
    OrphanSnapshot,
    Pool,
    PoolSnapshot,
    Tenant,
    Workload,
)
from tests.support.fleet import (
    NOW,
    PREFIX,
    carry_out,
    digest_of,
    make_adapter,
    make_pool,
    make_replica,
    make_snapshot,
    make_state,
    make_tenant,
)
from tests.support.plans import LATER, change_adapter, ready_snapshot, settle

HEALTH = Path(__file__).resolve().parents[2] / "examples" / "argocd" / "resource_customizations" / GROUP
KSTATUS = {"Healthy": "Current", "Progressing": "InProgress", "Degraded": "Failed", "Suspended": "InProgress"}
"""What kstatus says where Argo CD says this. It knows no suspension: Ready is False, so it waits."""


@dataclass(frozen=True, slots=True)
class State:
    """One object as it may stand in a cluster, and how Argo CD should call it."""

    name: str
    health: str
    manifest: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """LoraPool, LoraAdapter or Tenant."""
        return str(self.manifest["kind"])

    @property
    def message(self) -> str:
        """What its health says: the words of the condition that decides, or its reason where it has none."""
        status = self.manifest.get("status", {})
        found = {each["type"]: each for each in status.get("conditions", [])}
        if not found:
            return "The operator has not looked at it yet"
        if status["observedGeneration"] != self.manifest["metadata"]["generation"]:
            return "The operator has not looked at this generation yet"
        decides = "Stalled" if self.health == "Degraded" else "Ready"
        if self.health == "Progressing" and found["Reconciling"]["status"] == "True":
            decides = "Reconciling"
        return str(found[decides].get("message") or found[decides]["reason"])


def all_states() -> list[State]:
    """Every state of every kind, in the order of the kinds."""
    return [*_pools(), *_adapters(), *_tenants()]


def _manifest(kind: str, thing: Pool | Adapter | Tenant, *, looked_at: bool = True) -> dict[str, Any]:
    meta = {"name": thing.meta.name, "namespace": thing.meta.namespace, "generation": thing.meta.generation}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": meta}
    spec = thing.spec.model_dump(by_alias=True, exclude_unset=True, mode="json") if thing.spec else {}
    return {**body, "spec": spec, "status": thing.status.wire() if looked_at else UNSEEN}


def _pools() -> Iterator[State]:
    def state(name: str, health: str, pool: Pool, *, looked_at: bool = True) -> State:
        return State(name, health, _manifest("LoraPool", pool, looked_at=looked_at))

    two = {"replicas": {"min": 2}}
    fleet = make_snapshot(
        pool=make_pool(**two), replicas=(), workloads={"shared": Workload(2, settled=True, partition=2)}
    )
    whole = _judged(replace(fleet, replicas=(make_replica(0), make_replica(1))))
    yield state("new", "Progressing", fleet.pool, looked_at=False)
    yield state("starting", "Progressing", _judged(fleet).pool)
    yield state("one-of-two", "Progressing", _judged(replace(fleet, replicas=(make_replica(0),))).pool)
    yield state("ready", "Healthy", whole.pool)
    yield state("redundancy-lost", "Progressing", _judged(replace(whole, replicas=whole.replicas[:1])).pool)
    changed = replace(whole.pool, meta=replace(whole.pool.meta, generation=2))
    yield state("changed", "Progressing", changed)
    pull = make_replica(0, make_state(ready=False), ready=False, waiting="ImagePullBackOff", message="not found")
    yield state("image-missing", "Degraded", _judged(replace(fleet, replicas=(pull,))).pool)
    base = BaseState(name="smollm2", problem=Problem(title="too big", status=413, code=ProblemCode.DOES_NOT_FIT))
    small = make_replica(0, make_state(ready=False, base=base), ready=False)
    yield state("base-does-not-fit", "Degraded", _judged(replace(fleet, replicas=(small,))).pool)
    needs_gpu = make_pool(engine={"dtype": "bfloat16"}, **two)
    yield state("invalid", "Degraded", _judged(replace(fleet, pool=needs_gpu)).pool)


def _judged(snapshot: PoolSnapshot) -> PoolSnapshot:
    """The snapshot with the statuses of one plan, whose actions are not carried out."""
    return carry_out(snapshot, replace(plan_pool(snapshot, NOW), actions=()))


def _adapters() -> Iterator[State]:
    def state(name: str, health: str, snapshot: PoolSnapshot, *, looked_at: bool = True) -> State:
        return State(name, health, _manifest("LoraAdapter", snapshot.adapters[0], looked_at=looked_at))

    fresh, ready = make_snapshot(adapters=(make_adapter("pirate"),)), ready_snapshot()
    yield state("new", "Progressing", fresh, looked_at=False)
    yield state("awaiting-replica", "Progressing", _judged(replace(fresh, replicas=())))
    inspecting = plan_pool(fresh, NOW)
    yield state("inspecting", "Progressing", carry_out(fresh, replace(inspecting, actions=())))
    yield state("ready", "Healthy", ready)
    gone = replace(ready, replicas=())
    yield state("no-replica-ready", "Progressing", _judged(gone))
    updated = change_adapter(ready, source={"uri": f"{PREFIX}pirate-2"})
    yield state("update-not-seen", "Progressing", updated)
    yield state("update-on-the-way", "Progressing", _judged(updated))
    yield state("update-refused", "Degraded", _judged(_inspected(updated, ProblemCode.UNSUPPORTED_ADAPTER, 2)))
    yield state("base-mismatch", "Degraded", _judged(_inspected(fresh, ProblemCode.BASE_MISMATCH, 1)))
    pinned = make_adapter("pirate", source={"uri": f"{PREFIX}pirate", "digest": digest_of("wanted")})
    declared = make_snapshot(adapters=(pinned,))
    yield state("digest-mismatch", "Degraded", _judged(_inspected(declared, ProblemCode.DIGEST_MISMATCH, 1)))
    full = make_snapshot(adapters=(make_adapter("pirate"),), replicas=(make_replica(0, make_state(budget=1)),))
    yield state("does-not-fit", "Degraded", settle(full)[0])
    yield state("suspended", "Suspended", _judged(change_adapter(ready, suspend=True)))
    reserved = make_snapshot(adapters=(make_adapter("pirate", model="smollm2"),))
    yield state("name-reserved", "Degraded", _judged(reserved))
    refused = make_snapshot(adapters=(make_adapter("pirate", source={"uri": "http://elsewhere/pirate"}),))
    yield state("source-not-allowed", "Degraded", _judged(refused))
    orphan = plan_orphans(OrphanSnapshot((make_adapter("pirate"),), ()), NOW)
    (write,) = orphan.statuses
    alone = replace(make_adapter("pirate"), status=write.status)
    yield State("pool-not-found", "Degraded", _manifest("LoraAdapter", alone))


def _inspected(snapshot: PoolSnapshot, code: ProblemCode, generation: int) -> PoolSnapshot:
    """The snapshot after an engine looked at the files and refused them."""
    problem = Problem(title="refused", status=422, code=code, detail="the files are not what was asked for")
    key = InspectionKey(snapshot.adapters[0].meta.uid, generation)
    return replace(snapshot, memory=Memory(inspections={key: Attempt(False, LATER, 1, problem)}))


def _tenants() -> Iterator[State]:
    def state(name: str, health: str, tenant: Tenant, *, looked_at: bool = True) -> State:
        return State(name, health, _manifest("Tenant", tenant, looked_at=looked_at))

    def judged(tenant: Tenant) -> Tenant:
        return _judged(make_snapshot(tenants=(tenant,))).tenants[0]

    yield state("new", "Progressing", make_tenant("acme"), looked_at=False)
    yield state("ready", "Healthy", judged(make_tenant("acme")))
    yield state("no-valid-key", "Degraded", judged(make_tenant("acme", apiKeys=[])))
    yield state("adapter-not-found", "Degraded", judged(make_tenant("acme", adapters={"names": ["pirate"]})))
    yield state("namespace-not-allowed", "Degraded", judged(make_tenant("acme", namespace="elsewhere")))
    (write,) = plan_orphans(OrphanSnapshot((), (make_tenant("acme"),)), NOW).statuses
    yield state("pool-not-found", "Degraded", replace(make_tenant("acme"), status=write.status))


def rendered() -> dict[Path, str]:
    """File -> text of all fixtures, as Argo CD's own tests want them."""
    files: dict[Path, str] = {}
    tests: dict[str, list[dict[str, Any]]] = {}
    for state in all_states():
        path = HEALTH / state.kind / "testdata" / f"{state.name}.yaml"
        files[path] = yaml.safe_dump(dict(state.manifest), sort_keys=False, width=120)
        expected = {"status": state.health, "message": state.message}
        tests.setdefault(state.kind, []).append({"healthStatus": expected, "inputPath": f"testdata/{state.name}.yaml"})
    for kind, cases in tests.items():
        files[HEALTH / kind / "health_test.yaml"] = yaml.safe_dump({"tests": cases}, sort_keys=False, width=120)
    return files


def main() -> None:
    """Write them."""
    for path, text in rendered().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
