"""Envoy's engine clusters and their endpoints as plain documents. shell/envoy_files.py writes them for each table."""

from collections.abc import Iterable

from lorafleet_gateway.core.envoy_bootstrap import http_options, unlimited_breakers
from lorafleet_gateway.core.envoy_names import BUFFER_BYTES, DESTINATION_KEY, DESTINATION_NAMESPACE, TYPE, Document
from lorafleet_gateway.core.records import ObjectKey, Replica

IDLE = "60s"
"""Below the engine's own keep-alive, so that Envoy never sends into a connection that is just being closed."""
KEEPALIVE = {"keepalive_time": 5, "keepalive_interval": 2, "keepalive_probes": 3}
"""Ends connections to a machine that is gone without a word after 11 s; their requests are retried elsewhere."""
_POLICIES = "extensions.load_balancing_policies."


def cluster_name(pool: ObjectKey) -> str:
    """Name of the pool's cluster: namespaces hold no dot, so that two pools never share one."""
    namespace, name = pool
    return f"{namespace}.{name}"


def endpoints_file(pool: ObjectKey) -> str:
    """Name of the file with the pool's endpoints."""
    return f"eds-{cluster_name(pool)}.json"


def build_clusters(pools: Iterable[ObjectKey], config_dir: str) -> Document:
    """The discovery response with one cluster for each pool: a request may go from one of its sets to another."""
    return {"resources": [_cluster(pool, config_dir) for pool in sorted(pools, key=cluster_name)]}


def build_endpoints(pool: ObjectKey, replicas: tuple[Replica, ...]) -> Document:
    """The discovery response with one pool's endpoints."""
    endpoints = []
    for replica in replicas:
        host, _, port = replica.serving.rpartition(":")
        address = {"address": host.strip("[]"), "port_value": int(port)}
        endpoints.append({"endpoint": {"address": {"socket_address": address}}})
    assignment = {
        "@type": f"{TYPE}config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": cluster_name(pool),
        "endpoints": [{"lb_endpoints": endpoints}],
    }
    return {"resources": [assignment]}


def _cluster(pool: ObjectKey, config_dir: str) -> Document:
    path = {"path": f"{config_dir}/{endpoints_file(pool)}"}
    return {
        "@type": f"{TYPE}config.cluster.v3.Cluster",
        "name": cluster_name(pool),
        "type": "EDS",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "upstream_connection_options": {"tcp_keepalive": KEEPALIVE},
        "eds_cluster_config": {"eds_config": {"resource_api_version": "V3", "path_config_source": path}},
        "load_balancing_policy": {"policies": [{"typed_extension_config": _override_host()}]},
        "circuit_breakers": unlimited_breakers(),
        "typed_extension_protocol_options": http_options({"http_protocol_options": {}}, idle=IDLE),
    }


def _override_host() -> Document:
    """The picker's ordered list first; when it is used up, any host (one that lacks the version says so)."""
    metadata = {"key": DESTINATION_NAMESPACE, "path": [{"key": DESTINATION_KEY}]}
    fallback = {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {"@type": f"{TYPE}{_POLICIES}least_request.v3.LeastRequest"},
    }
    return {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": f"{TYPE}{_POLICIES}override_host.v3.OverrideHost",
            "override_host_sources": [{"metadata": metadata}],
            "fallback_policy": {"policies": [{"typed_extension_config": fallback}]},
        },
    }
