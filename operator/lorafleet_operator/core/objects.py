"""Our own objects of a pool: what the API server should hold and does not, and what it holds to no use any more.

Called by the planning for pools that are not refused.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_operator.core.actions import Apply, Delete
from lorafleet_operator.core.manifests.certificates import build_certificate
from lorafleet_operator.core.manifests.disruption import build_disruption_budget
from lorafleet_operator.core.manifests.engine import build_stateful_set
from lorafleet_operator.core.manifests.identity import fingerprint, set_name
from lorafleet_operator.core.manifests.policy import build_network_policy
from lorafleet_operator.core.manifests.service import build_service
from lorafleet_operator.core.manifests.tokens import build_tokens
from lorafleet_operator.core.sets import EngineSet
from lorafleet_operator.core.snapshot import PoolSnapshot

OF_A_SET = ("Service", "PodDisruptionBudget", "StatefulSet")
"""In the order in which they end: nothing is sent any more first; the StatefulSet tells of the set, so it goes last."""


def due_applies(snapshot: PoolSnapshot, spec: LoraPoolSpec, sets: Sequence[EngineSet]) -> list[Apply]:
    """Objects that the API server is not known to hold as they should be; what protects before what runs."""
    meta, neighbours = snapshot.pool.meta, snapshot.defaults.neighbours
    tls = snapshot.tls
    manifests = [build_tokens(meta, snapshot.tokens, tls.roots)]
    if tls.certificate is not None:
        manifests.append(build_certificate(meta, tls.certificate, tls.roots))
    if neighbours:
        manifests.append(build_network_policy(meta, neighbours))
    for each in sets:
        manifests += [
            build_service(meta, each),
            build_disruption_budget(meta, each),
            _stateful_set(snapshot, spec, each),
        ]
    applies = []
    for manifest in manifests:
        key, mark = f"{manifest['kind']}/{manifest['metadata']['name']}", fingerprint(manifest)
        if snapshot.applied.get(key) != mark:
            applies.append(Apply(key, mark, manifest))
    return applies


def _stateful_set(snapshot: PoolSnapshot, spec: LoraPoolSpec, engines: EngineSet) -> dict[str, Any]:
    """A set's StatefulSet. A template that the API server may not hold yet is let through to no replica: those that may
    go were emptied for the one before."""
    meta, defaults, workload = snapshot.pool.meta, snapshot.defaults, snapshot.workloads.get(engines.name)
    manifest = build_stateful_set(meta, spec, defaults, engines)
    if workload is None or engines.partition >= engines.replicas:
        return manifest
    as_before = replace(engines, replicas=workload.replicas, partition=workload.partition)
    held = snapshot.applied.get(f"StatefulSet/{manifest['metadata']['name']}")
    if held in {fingerprint(manifest), fingerprint(build_stateful_set(meta, spec, defaults, as_before))}:
        return manifest
    return build_stateful_set(meta, spec, defaults, replace(engines, partition=engines.replicas))


def deletes(snapshot: PoolSnapshot, ended: Sequence[str]) -> list[Delete]:
    """The end of the objects of these sets."""
    meta = snapshot.pool.meta
    return [
        Delete(f"{kind}/{set_name(meta.name, name)}", meta.namespace, meta.uid) for name in ended for kind in OF_A_SET
    ]
