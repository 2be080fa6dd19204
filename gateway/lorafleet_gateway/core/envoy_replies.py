"""The bodies of Envoy's own answers, in the API's shape. Used by core/envoy_listeners.py."""

from lorafleet_gateway.core.envoy_names import PICKER_DETAILS, TYPE, Document, EnvoyOptions
from lorafleet_gateway.core.rejections import INVALID_REQUEST, SERVER_ERROR, body_too_large

MAX_HEADERS_KB = 60


def build_reply_mappers(options: EnvoyOptions) -> list[Document]:
    """The first that fits wins; the picker's answers (told by their details) pass as they are."""
    return [
        {
            "filter": _details_filter(PICKER_DETAILS),
            "body_format_override": {
                "text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"},
                "content_type": "application/json",
            },
        },
        _server_error(
            _details_filter("ext_proc_error"), "gateway_unavailable", "The gateway is temporarily unavailable."
        ),
        _server_error(_details_filter("overload"), "gateway_overloaded", "The gateway has more work than it can hold."),
        _client_error(413, "request_too_large", body_too_large(options.max_body).message),
        _client_error(
            431,
            "request_headers_too_large",
            f"The request's headers are larger than {MAX_HEADERS_KB} KiB. Send fewer or shorter ones.",
        ),
        _client_error(
            408,
            "request_timeout",
            f"The request did not arrive in time: its headers must be here within {options.headers_seconds} s, all of "
            f"it within {options.request_seconds} s. Send it again.",
        ),
        _server_error(_status_filter("GE", 500), "model_unavailable", "The model's replicas are unavailable."),
        _client_error(
            400,
            "invalid_request",
            "The request is not acceptable (%RESPONSE_CODE%: %RESPONSE_CODE_DETAILS%). Check the URL and the headers "
            "that your client sends.",
            "GE",
        ),
    ]


def build_body(message: str, kind: str, code: str) -> Document:
    """An error's body."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _server_error(condition: Document, code: str, message: str) -> Document:
    retry_after = {"header": {"key": "retry-after", "value": "1"}}
    body = build_body(f"{message} Try again shortly.", SERVER_ERROR, code)
    return {**_mapper(condition, body), "status_code": 503, "headers_to_add": [retry_after]}


def _client_error(status: int, code: str, message: str, operator: str = "EQ") -> Document:
    return _mapper(_status_filter(operator, status), build_body(message, INVALID_REQUEST, code))


def _mapper(condition: Document, body: Document) -> Document:
    return {"filter": condition, "body_format_override": {"content_type": "application/json", "json_format": body}}


def _details_filter(prefix: str) -> Document:
    return {
        "extension_filter": {
            "name": "cel",
            "typed_config": {
                "@type": f"{TYPE}extensions.access_loggers.filters.cel.v3.ExpressionFilter",
                "expression": f"response.code_details.startsWith('{prefix}')",
            },
        }
    }


def _status_filter(operator: str, status: int) -> Document:
    comparison = {"op": operator, "value": {"default_value": status, "runtime_key": "unused"}}
    return {
        "and_filter": {"filters": [{"status_code_filter": {"comparison": comparison}}, {"not_health_check_filter": {}}]}
    }
