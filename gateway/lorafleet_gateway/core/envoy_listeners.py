"""Envoy's listeners as plain documents: what clients may send, and how a request moves on. Used by envoy_bootstrap.py.

What Envoy may believe comes from the picker alone: every client header that could steer it is removed before any
filter runs, and the destination travels in dynamic metadata, which no client can send.
"""

from typing import Any

from lorafleet_contracts.names import HEADER_PREFIX, HEADER_REQUEST_ID, HEADER_RETRY
from lorafleet_gateway.core.envoy_names import (
    BUFFER_BYTES,
    COUNTED_KEY,
    DESTINATION_NAMESPACE,
    HEADER_CLUSTER,
    HTTP_FILTERS,
    READY_PATH,
    TLS_FILE,
    TYPE,
    Document,
    EnvoyOptions,
    TlsOptions,
    address,
)
from lorafleet_gateway.core.envoy_replies import (
    MAX_HEADERS_KB,
    build_body,
    build_reply_mappers,
)
from lorafleet_gateway.core.rejections import INVALID_REQUEST
from lorafleet_gateway.core.routing import MAX_HOSTS

STREAM_IDLE = "600s"
FLUSH_IDLE = "60s"
"""For a client that takes nothing more of an answer that is complete."""
STREAMS_A_CONNECTION = 128
CLIENT_PREFIXES = (HEADER_PREFIX, "x-envoy-", "x-gateway-", "x-forwarded-")
"""Headers that no client may set."""
CLIENT_HEADERS = ("forwarded", "x-request-id")
"""Headers, besides, that the gateway alone may set or that would say untrue things behind it."""
PICKER_HEADERS = (":method", ":path", "authorization", "content-length", HEADER_REQUEST_ID)
"""What the picker is told of a request's headers."""
TLS_SECRET = "clients"


def build_listeners(options: EnvoyOptions) -> list[Document]:
    """The clients' listener. With TLS it has a port of its own, and the plain one answers probes only."""
    if options.tls is None:
        return [_listener("clients", options.listen_port, options, _serving_manager(options))]
    socket = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": _downstream_tls(options.config_dir),
    }
    return [
        _listener("clients", options.tls.port, options, _serving_manager(options), {"transport_socket": socket}),
        _listener("probes", options.listen_port, options, _probes_manager(options.tls.port, options)),
    ]


def build_tls_secret(tls: TlsOptions) -> Document:
    """The discovery response with the certificate; Envoy reads the files anew whenever the folder's links move."""
    files = {
        "certificate_chain": {"filename": f"{tls.folder}/tls.crt"},
        "private_key": {"filename": f"{tls.folder}/tls.key"},
    }
    certificate = {**files, "watched_directory": {"path": tls.folder}}
    secret_type = f"{TYPE}extensions.transport_sockets.tls.v3.Secret"
    return {"resources": [{"@type": secret_type, "name": TLS_SECRET, "tls_certificate": certificate}]}


def _downstream_tls(config_dir: str) -> Document:
    path = {"path": f"{config_dir}/{TLS_FILE}"}
    secret = {"name": TLS_SECRET, "sds_config": {"resource_api_version": "V3", "path_config_source": path}}
    return {
        "@type": f"{TYPE}extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_certificate_sds_secret_configs": [secret],
        },
    }


def _listener(name: str, port: int, options: EnvoyOptions, manager: Document, chain: Any = None) -> Document:
    http = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "name": name,
        "address": address(options.listen_host, port),
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [{"filters": [http], **(chain or {})}],
    }


def _manager(name: str, options: EnvoyOptions) -> Document:
    return {
        "@type": f"{TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "use_remote_address": True,
        "normalize_path": True,
        "max_request_headers_kb": MAX_HEADERS_KB,
        "request_headers_timeout": f"{options.headers_seconds}s",
        "request_timeout": f"{options.request_seconds}s",  # for the whole request to arrive
        "common_http_protocol_options": {"idle_timeout": "300s", "headers_with_underscores_action": "DROP_HEADER"},
    }


def _probes_manager(tls_port: int, options: EnvoyOptions) -> Document:
    body = f"This port answers probes only; send requests with https to port {tls_port}."
    refusal = {"status": 400, "body": {"inline_string": body}}
    routes = [{"match": {"prefix": "/"}, "direct_response": refusal}]
    error = build_body("%LOCAL_REPLY_BODY%", INVALID_REQUEST, "tls_required")
    return {
        **_manager("probes", options),
        "local_reply_config": {"body_format": {"content_type": "application/json", "json_format": error}},
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [_health_filter(), _router_filter()],
    }


def _serving_manager(options: EnvoyOptions) -> Document:
    prefixes = [{"prefix": prefix, "ignore_case": True} for prefix in CLIENT_PREFIXES]
    names = [{"exact": name, "ignore_case": True} for name in CLIENT_HEADERS]
    everything = {
        "name": "all",
        "domains": ["*"],
        "routes": [_route()],
        "request_body_buffer_limit": options.max_body,  # a longer body is a 413, as all of it is buffered
    }
    return {
        **_manager("clients", options),
        "always_set_request_id_in_response": True,
        "access_log": [_log_of_ends()],
        "stream_idle_timeout": STREAM_IDLE,
        "stream_flush_timeout": FLUSH_IDLE,
        "http2_protocol_options": {
            "max_concurrent_streams": STREAMS_A_CONNECTION,
            "initial_stream_window_size": BUFFER_BYTES,
            "initial_connection_window_size": 4 * BUFFER_BYTES,
        },
        "early_header_mutation_extensions": [
            {
                "name": "strip",
                "typed_config": {
                    "@type": f"{TYPE}extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    "mutations": [{"remove_on_match": {"key_matcher": matcher}} for matcher in (*prefixes, *names)],
                },
            }
        ],
        "local_reply_config": {"mappers": build_reply_mappers(options)},
        "route_config": {"virtual_hosts": [everything]},
        "http_filters": [_health_filter(), _picker_filter(options.picker_seconds), _router_filter()],
    }


def _route() -> Document:
    retries = {
        "retry_on": "connect-failure,refused-stream,reset,retriable-headers",
        "num_retries": MAX_HOSTS - 1,
        "retriable_headers": [{"name": HEADER_RETRY, "present_match": True}],
        "retry_back_off": {"base_interval": "0.010s", "max_interval": "0.100s"},
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": f"{TYPE}extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
                },
            }
        ],
        "host_selection_retry_max_attempts": MAX_HOSTS,
    }
    return {
        "match": {"prefix": "/"},
        "route": {
            "cluster_header": HEADER_CLUSTER,
            "timeout": "0s",
            "idle_timeout": STREAM_IDLE,
            "retry_policy": retries,
        },
        "request_headers_to_remove": [HEADER_CLUSTER],
        "response_headers_to_remove": [HEADER_RETRY],
    }


def _log_of_ends() -> Document:
    """Tells the picker when a request ends whose end matters; one that a client has left may be one of them."""
    counted = {
        "filter": DESTINATION_NAMESPACE,
        "path": [{"key": COUNTED_KEY}],
        "value": {"present_match": True},
    }
    return {
        "name": "envoy.access_loggers.http_grpc",
        "filter": {
            "or_filter": {
                "filters": [
                    {"metadata_filter": {"matcher": counted, "match_if_key_not_found": False}},
                    {"response_flag_filter": {"flags": ["DC", "DR"]}},
                ]
            }
        },
        "typed_config": {
            "@type": f"{TYPE}extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            "common_config": {
                "log_name": "ends",
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "log"}},
                "buffer_size_bytes": 0,  # each at once
            },
        },
    }


def _health_filter() -> Document:
    return {
        "name": "envoy.filters.http.health_check",
        "typed_config": {
            "@type": f"{HTTP_FILTERS}health_check.v3.HealthCheck",
            "pass_through_mode": False,
            "headers": [{"name": ":path", "string_match": {"exact": READY_PATH}}],
        },
    }


def _picker_filter(seconds: int) -> Document:
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{HTTP_FILTERS}ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
            "failure_mode_allow": False,
            "message_timeout": f"{seconds}s",
            "forward_rules": {"allowed_headers": {"patterns": [{"exact": name} for name in PICKER_HEADERS]}},
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": "BUFFERED",
                "request_trailer_mode": "SKIP",
                "response_header_mode": "SKIP",  # streams must not depend on the picker
                "response_body_mode": "NONE",
                "response_trailer_mode": "SKIP",
            },
            "metadata_options": {"receiving_namespaces": {"untyped": [DESTINATION_NAMESPACE]}},
        },
    }


def _router_filter() -> Document:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": f"{HTTP_FILTERS}router.v3.Router", "suppress_envoy_headers": True},
    }
