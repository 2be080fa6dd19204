"""Envoy's bootstrap as a plain document. Called by the bootstrap command; shell/envoy_files.py writes it."""

from lorafleet_gateway.core.envoy_listeners import build_listeners
from lorafleet_gateway.core.envoy_names import CDS_FILE, TYPE, UNLIMITED, Document, EnvoyOptions, address

_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_MONITORS = f"{TYPE}extensions.resource_monitors."
_CONNECTIONS = "envoy.resource_monitors.global_downstream_max_connections"
_HEAP = "envoy.resource_monitors.fixed_heap"
HEAP_SHARE = 0.9
"""Of the memory that Envoy may take; the rest is what its allocator and threads need besides."""


def build_bootstrap(options: EnvoyOptions) -> Document:
    """The whole bootstrap: listeners, the picker's cluster, engine clusters from files, and what it does when full."""
    cds = {"resource_api_version": "V3", "path_config_source": {"path": f"{options.config_dir}/{CDS_FILE}"}}
    return {
        "node": {"id": options.name, "cluster": "lorafleet-gateway"},
        "admin": {"address": address("127.0.0.1", options.admin_port)},
        "dynamic_resources": {"cds_config": cds},
        "static_resources": {
            "listeners": build_listeners(options),
            "clusters": [_grpc_cluster("picker", options.picker_port), _grpc_cluster("log", options.log_port)],
        },
        "overload_manager": _overload_manager(options),
    }


def http_options(options: Document, idle: str | None = None) -> Document:
    """Protocol options of a cluster, with an idle timeout for its connections."""
    common = {"common_http_protocol_options": {"idle_timeout": idle}} if idle else {}
    return {_HTTP_OPTIONS: {"@type": f"type.googleapis.com/{_HTTP_OPTIONS}", "explicit_http_config": options, **common}}


def unlimited_breakers() -> Document:
    """Circuit breakers that never trip: admission is the picker's and the engines' business."""
    names = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(names, UNLIMITED)]}


def _grpc_cluster(name: str, port: int) -> Document:
    # the keep-alive ends streams of a picker that hangs without closing its connection; one that a busy machine lets
    # wait for a second does not hang
    keepalive = {"connection_keepalive": {"interval": "2s", "timeout": "2s"}}
    endpoint = {"endpoint": {"address": address("127.0.0.1", port)}}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": unlimited_breakers(),
        "typed_extension_protocol_options": http_options({"http2_protocol_options": keepalive}),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _overload_manager(options: EnvoyOptions) -> Document:
    """Refuse connections above the limit. Near the end of memory, reset what holds most, then refuse requests."""
    connections = {
        "name": _CONNECTIONS,
        "typed_config": {
            "@type": f"{_MONITORS}downstream_connections.v3.DownstreamConnectionsConfig",
            "max_active_downstream_connections": options.max_connections,
        },
    }
    if options.memory is None:
        return {"resource_monitors": [connections]}
    heap = {
        "name": _HEAP,
        "typed_config": {
            "@type": f"{_MONITORS}fixed_heap.v3.FixedHeapConfig",
            "max_heap_size_bytes": int(options.memory * HEAP_SHARE),
        },
    }
    return {
        "refresh_interval": "0.25s",
        "resource_monitors": [connections, heap],
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": 20},
        "actions": [
            _action("reset_high_memory_stream", {"scaled": {"scaling_threshold": 0.85, "saturation_threshold": 0.98}}),
            _action("shrink_heap", {"threshold": {"value": 0.85}}),
            _action("stop_accepting_requests", {"threshold": {"value": 0.95}}),
        ],
    }


def _action(name: str, trigger: Document) -> Document:
    return {"name": f"envoy.overload_actions.{name}", "triggers": [{"name": _HEAP, **trigger}]}
