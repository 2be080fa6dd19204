"""Envoy's engine clusters and their endpoints as plain documents. shell/envoy_files.py writes them for each table."""

from collections.abc import Iterable

from lorafleet_contracts.names import engine_server_name
from lorafleet_gateway.core.envoy_bootstrap import http_options, unlimited_breakers
from lorafleet_gateway.core.envoy_names import (
    BUFFER_BYTES,
    DESTINATION_KEY,
    DESTINATION_NAMESPACE,
    ROOTS_FILE,
    TYPE,
    Document,
    address,
)
from lorafleet_gateway.core.records import ObjectKey, Replica

IDLE = "60s"
"""Below the engine's own keep-alive, so that Envoy never sends into a connection that is just being closed."""
KEEPALIVE = {"keepalive_time": 5, "keepalive_interval": 2, "keepalive_probes": 3}
"""Ends connections to a machine that is gone without a word after 11 s; their requests are retried elsewhere."""
ROOTS_SECRET = "engine-roots"
SPEAKS_TLS = {"tls": True}
"""On an endpoint, and what the cluster looks for there."""
_TLS = f"{TYPE}extensions.transport_sockets.tls.v3."
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
    plain = [_endpoint(each) for each in replicas if not each.tls]
    mark = {"filter_metadata": {"envoy.transport_socket_match": SPEAKS_TLS}}
    tls = [{**_endpoint(each), "metadata": mark} for each in replicas if each.tls]
    # Apart, as Envoy keeps the connections of an address that is heard of again unless it moved to another place.
    places = [{"lb_endpoints": plain}, {"locality": {"sub_zone": "tls"}, "lb_endpoints": tls}]
    assignment = {
        "@type": f"{TYPE}config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": cluster_name(pool),
        "endpoints": places,
    }
    return {"resources": [assignment]}


def _endpoint(replica: Replica) -> Document:
    host, _, port = replica.serving.rpartition(":")
    return {"endpoint": {"address": address(host.strip("[]"), int(port))}}


def build_roots(pem: str | None) -> Document:
    """The discovery response with who signs for engines. While nobody is known to, no handshake succeeds."""
    if pem is None:
        return {"resources": []}
    roots = {"trusted_ca": {"inline_string": pem}}
    return {"resources": [{"@type": f"{_TLS}Secret", "name": ROOTS_SECRET, "validation_context": roots}]}


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
        "transport_socket_matches": [{"name": "tls", "match": SPEAKS_TLS, "transport_socket": _tls(pool, config_dir)}],
        "load_balancing_policy": {"policies": [{"typed_extension_config": _override_host()}]},
        "circuit_breakers": unlimited_breakers(),
        "typed_extension_protocol_options": http_options({"http_protocol_options": {}}, idle=IDLE),
    }


def _tls(pool: ObjectKey, config_dir: str) -> Document:
    """Whoever answers for the pool must prove its name: it is the cluster's, and nothing in a request changes it."""
    server = engine_server_name(*pool)
    path = {"path": f"{config_dir}/{ROOTS_FILE}"}
    validation = {
        "default_validation_context": {
            "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": server}}]
        },
        "validation_context_sds_secret_config": {
            "name": ROOTS_SECRET,
            "sds_config": {"resource_api_version": "V3", "path_config_source": path},
        },
    }
    context = {
        "@type": f"{_TLS}UpstreamTlsContext",
        "sni": server,
        "max_session_keys": 0,  # a resumed session would show no certificate
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "alpn_protocols": ["http/1.1"],
            "combined_validation_context": validation,
        },
    }
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


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
