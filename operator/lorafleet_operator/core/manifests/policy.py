"""The NetworkPolicy of a pool's engines: each port is open to those who have business there, and to nobody else.

Tokens protect the ports, too; this is the second wall. Probes come from the node, which every network admits.
"""

from collections.abc import Sequence
from typing import Any

from lorafleet_contracts.names import LABEL_POOL, EnginePort
from lorafleet_operator.core.manifests.identity import object_meta, set_name
from lorafleet_operator.core.snapshot import Meta, Neighbours

NAMESPACE_NAME = "kubernetes.io/metadata.name"
Peers = list[dict[str, Any]]


def build_network_policy(pool: Meta, neighbours: Neighbours) -> dict[str, Any]:
    """Serving: gateways. State: gateways, operators, monitoring. Admin: operators."""
    gateways, operators = _part(neighbours, "gateway"), _part(neighbours, "operator")
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": object_meta(pool, set_name(pool.name)),
        "spec": {
            "podSelector": {"matchLabels": {LABEL_POOL: pool.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                _rule(EnginePort.SERVING, gateways),
                _rule(EnginePort.STATE, gateways + operators + _monitors(neighbours.monitoring)),
                _rule(EnginePort.ADMIN, operators),
            ],
        },
    }


def _rule(port: EnginePort, peers: Peers) -> dict[str, Any]:
    return {"from": peers, "ports": [{"protocol": "TCP", "port": int(port)}]}


def _part(neighbours: Neighbours, component: str) -> Peers:
    """Pods of one part of our own installation."""
    labels = {
        "app.kubernetes.io/name": "lorafleet",
        "app.kubernetes.io/instance": neighbours.instance,
        "app.kubernetes.io/component": component,
    }
    namespace = {"matchLabels": {NAMESPACE_NAME: neighbours.namespace}}
    return [{"namespaceSelector": namespace, "podSelector": {"matchLabels": labels}}]


def _monitors(namespaces: Sequence[str]) -> Peers:
    """Every pod of these namespaces."""
    if not namespaces:
        return []
    names = {"key": NAMESPACE_NAME, "operator": "In", "values": list(namespaces)}
    return [{"namespaceSelector": {"matchExpressions": [names]}}]
