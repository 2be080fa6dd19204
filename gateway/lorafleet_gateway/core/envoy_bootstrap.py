"""Envoy's bootstrap as a plain document. Called by the bootstrap command; shell/envoy_files.py writes it.

What Envoy may believe comes from the picker alone: every client header that could steer it is removed before any
filter runs, and the destination travels in dynamic metadata, which no client can send.
"""

from typing import Any

from lorafleet_contracts.names import HEADER_PREFIX, HEADER_RETRY
from lorafleet_gateway.core.rejections import INVALID_REQUEST, SERVER_ERROR
from lorafleet_gateway.core.routing import MAX_HOSTS

Document = dict[str, Any]

HEADER_CLUSTER = f"{HEADER_PREFIX}cluster"
"""Set by the picker for Envoy's route; never sent upstream."""
DESTINATION_NAMESPACE = "envoy.lb"
DESTINATION_KEY = "x-gateway-destination-endpoint"
PICKER_DETAILS = "picker_"
"""Prefix of the response code details of the picker's own answers."""
READY_PATH = "/ready"
CDS_FILE = "cds.json"

STREAM_IDLE = "600s"
UNLIMITED = 100_000
_TYPE = "type.googleapis.com/envoy."
_HTTP = f"{_TYPE}extensions.filters.http."
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def build_bootstrap(
    *, name: str, listen: tuple[str, int], admin_port: int, picker_port: int, max_body: int, config_dir: str
) -> Document:
    """The whole bootstrap: one listener for clients, the picker's cluster, engine clusters from `config_dir`."""
    return {
        "node": {"id": name, "cluster": "lorafleet-gateway"},
        "admin": {"address": _address("127.0.0.1", admin_port)},
        "dynamic_resources": {
            "cds_config": {
                "resource_api_version": "V3",
                "path_config_source": {"path": f"{config_dir}/{CDS_FILE}"},
            }
        },
        "static_resources": {"listeners": [_listener(listen, max_body)], "clusters": [_picker_cluster(picker_port)]},
    }


def http_options(options: Document, idle: str | None = None) -> Document:
    """Protocol options of a cluster, with an idle timeout for its connections."""
    common = {"common_http_protocol_options": {"idle_timeout": idle}} if idle else {}
    return {_HTTP_OPTIONS: {"@type": f"type.googleapis.com/{_HTTP_OPTIONS}", "explicit_http_config": options, **common}}


def unlimited_breakers() -> Document:
    """Circuit breakers that never trip: admission is the picker's and the engines' business."""
    names = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(names, UNLIMITED)]}


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}


def _picker_cluster(port: int) -> Document:
    # the keep-alive ends streams of a picker that hangs without closing its connection
    keepalive = {"connection_keepalive": {"interval": "2s", "timeout": "1s"}}
    endpoint = {"endpoint": {"address": _address("127.0.0.1", port)}}
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": unlimited_breakers(),
        "typed_extension_protocol_options": http_options({"http2_protocol_options": keepalive}),
        "load_assignment": {"cluster_name": "picker", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _listener(listen: tuple[str, int], max_body: int) -> Document:
    manager = {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": _connection_manager(max_body),
    }
    return {
        "name": "clients",
        "address": _address(*listen),
        "per_connection_buffer_limit_bytes": max_body,  # a longer body is a 413, as all of it is buffered
        "filter_chains": [{"filters": [manager]}],
    }


def _connection_manager(max_body: int) -> Document:
    removals = [
        {"remove_on_match": {"key_matcher": {"prefix": prefix, "ignore_case": True}}}
        for prefix in (HEADER_PREFIX, "x-envoy-", "x-gateway-")
    ]
    return {
        "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "clients",
        "use_remote_address": True,
        "normalize_path": True,
        "always_set_request_id_in_response": True,
        "stream_idle_timeout": STREAM_IDLE,
        "request_headers_timeout": "10s",
        "request_timeout": "60s",  # for the whole request to arrive
        "common_http_protocol_options": {"idle_timeout": "300s", "headers_with_underscores_action": "REJECT_REQUEST"},
        "early_header_mutation_extensions": [
            {
                "name": "strip",
                "typed_config": {
                    "@type": f"{_TYPE}extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    "mutations": removals,
                },
            }
        ],
        "local_reply_config": {"mappers": _reply_mappers(max_body)},
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route()]}]},
        "http_filters": [_health_filter(), _picker_filter(), _router_filter()],
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
                    "@type": f"{_TYPE}extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
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


def _health_filter() -> Document:
    return {
        "name": "envoy.filters.http.health_check",
        "typed_config": {
            "@type": f"{_HTTP}health_check.v3.HealthCheck",
            "pass_through_mode": False,
            "headers": [{"name": ":path", "string_match": {"exact": READY_PATH}}],
        },
    }


def _picker_filter() -> Document:
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": f"{_HTTP}ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
            "failure_mode_allow": False,
            "message_timeout": "10s",
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
        "typed_config": {"@type": f"{_HTTP}router.v3.Router", "suppress_envoy_headers": True},
    }


def _reply_mappers(max_body: int) -> list[Document]:
    """Give Envoy's own answers the API's shape; the picker's answers (told by their details) pass as they are."""
    return [
        {
            "filter": _details_filter(f"startsWith('{PICKER_DETAILS}')"),
            "body_format_override": {
                "text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"},
                "content_type": "application/json",
            },
        },
        _mapper(
            _details_filter("startsWith('ext_proc_error')"),
            _error("The gateway is temporarily unavailable. Try again shortly.", SERVER_ERROR, "gateway_unavailable"),
            503,
        ),
        _mapper(
            _status_filter("EQ", 413),
            _error(f"The request body is larger than {max_body} bytes.", INVALID_REQUEST, "request_too_large"),
        ),
        _mapper(
            _status_filter("GE", 500),
            _error("The model's replicas are unavailable. Try again shortly.", SERVER_ERROR, "model_unavailable"),
            503,
        ),
        _mapper(
            _status_filter("GE", 400),
            _error("The request is not acceptable: %RESPONSE_CODE%.", INVALID_REQUEST, "invalid_request"),
        ),
    ]


def _error(message: str, kind: str, code: str) -> Document:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _mapper(condition: Document, body: Document, status: int | None = None) -> Document:
    """Answer `body` where `condition` holds; with `status`, that status and a Retry-After."""
    mapper: Document = {
        "filter": condition,
        "body_format_override": {"content_type": "application/json", "json_format": body},
    }
    if status is not None:
        retry_after = {"header": {"key": "retry-after", "value": "1"}}
        mapper |= {"status_code": status, "headers_to_add": [retry_after]}
    return mapper


def _details_filter(call: str) -> Document:
    return {
        "extension_filter": {
            "name": "cel",
            "typed_config": {
                "@type": f"{_TYPE}extensions.access_loggers.filters.cel.v3.ExpressionFilter",
                "expression": f"response.code_details.{call}",
            },
        }
    }


def _status_filter(operator: str, status: int) -> Document:
    comparison = {"op": operator, "value": {"default_value": status, "runtime_key": "unused"}}
    return {
        "and_filter": {"filters": [{"status_code_filter": {"comparison": comparison}}, {"not_health_check_filter": {}}]}
    }
