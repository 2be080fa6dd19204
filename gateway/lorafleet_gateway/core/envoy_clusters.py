"""Envoy's engine clusters and their endpoints as plain documents. shell/envoy_files.py writes them for each table."""

from collections.abc import Mapping

from lorafleet_gateway.core.envoy_bootstrap import http_options, unlimited_breakers
from lorafleet_gateway.core.envoy_names import BUFFER_BYTES, DESTINATION_KEY, DESTINATION_NAMESPACE, TYPE, Document
from lorafleet_gateway.core.records import Replica
from lorafleet_gateway.core.table import SetKey

IDLE = "60s"
"""Below the engine's own keep-alive, so that Envoy never sends into a connection that is just being closed."""
KEEPALIVE = {"keepalive_time": 5, "keepalive_interval": 2, "keepalive_probes": 3}
"""Ends connections to a machine that is gone without a word after 11 s; their requests are retried elsewhere."""
_POLICIES = "extensions.load_balancing_policies."


def cluster_name(key: SetKey) -> str:
    """Name of the set's cluster: namespaces hold no dot, so that two sets never share one."""
    namespace, name = key.pool
    return f"{namespace}.{key.set}.{name}"


def endpoints_file(key: SetKey) -> str:
    """Name of the file with the set's endpoints."""
    return f"eds-{cluster_name(key)}.json"


def build_clusters(sets: Mapping[SetKey, tuple[Replica, ...]], config_dir: str) -> Document:
    """The discovery response with one cluster for each set of replicas."""
    return {"resources": [_cluster(key, config_dir) for key in sorted(sets, key=cluster_name)]}


def build_endpoints(key: SetKey, replicas: tuple[Replica, ...]) -> Document:
    """The discovery response with one set's endpoints."""
    endpoints = []
    for replica in replicas:
        host, _, port = replica.serving.rpartition(":")
        address = {"address": host.strip("[]"), "port_value": int(port)}
        endpoints.append({"endpoint": {"address": {"socket_address": address}}})
    assignment = {
        "@type": f"{TYPE}config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": cluster_name(key),
        "endpoints": [{"lb_endpoints": endpoints}],
    }
    return {"resources": [assignment]}


def _cluster(key: SetKey, config_dir: str) -> Document:
    path = {"path": f"{config_dir}/{endpoints_file(key)}"}
    return {
        "@type": f"{TYPE}config.cluster.v3.Cluster",
        "name": cluster_name(key),
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
