"""The headless Service of a set of engines: stable names, and the EndpointSlices that gateways read."""

from typing import Any

from lorafleet_contracts.names import SERVING_TLS_PORT, EnginePort
from lorafleet_operator.core.manifests.identity import object_meta, selector_labels, set_name
from lorafleet_operator.core.sets import EngineSet
from lorafleet_operator.core.snapshot import Meta

HTTPS = 443
"""Of the port of TLS, which nobody connects to by the Service: it is without an address."""


def build_service(pool: Meta, engines: EngineSet) -> dict[str, Any]:
    """Only ready engines are published: a lost one leaves routing as soon as its probe fails.

    The port of TLS goes by the name that a pod's own port has: an EndpointSlice has it only for pods that speak TLS, so
    that gateways know them, one by one, from those of an earlier release.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": object_meta(pool, set_name(pool.name, engines.name), engines.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": False,
            "selector": selector_labels(pool.name, engines.name),
            "ports": [
                *({"name": port.name.lower(), "port": int(port), "protocol": "TCP"} for port in EnginePort),
                {"name": SERVING_TLS_PORT, "port": HTTPS, "targetPort": SERVING_TLS_PORT, "protocol": "TCP"},
            ],
        },
    }
