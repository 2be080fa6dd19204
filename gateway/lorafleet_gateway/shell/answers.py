"""Builds the picker's ext_proc messages. Called by shell/picker.py; decides nothing."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy.type.v3 import http_status_pb2
from google.protobuf import struct_pb2

from lorafleet_gateway.core.envoy_names import COUNTED_KEY, DESTINATION_KEY, DESTINATION_NAMESPACE, PICKER_DETAILS
from lorafleet_gateway.core.records import Model
from lorafleet_gateway.core.rejections import Rejection


def build_rejection(rejection: Rejection) -> ext_proc.ProcessingResponse:
    """An OpenAI-shaped error."""
    error = {
        "message": rejection.message,
        "type": rejection.type,
        "param": rejection.param,
        "code": rejection.code,
    }
    headers = {}
    if rejection.retry_after is not None:
        headers["retry-after"] = str(rejection.retry_after)
    if rejection.allow is not None:
        headers["allow"] = rejection.allow
    return _immediate(rejection.status, PICKER_DETAILS + rejection.code, {"error": error}, headers)


def build_model_list(models: Iterable[Model]) -> ext_proc.ProcessingResponse:
    """The answer of `GET /v1/models`."""
    body = {"object": "list", "data": [_model_object(model) for model in models]}
    return _immediate(200, PICKER_DETAILS + "models", body, {})


def build_model(model: Model) -> ext_proc.ProcessingResponse:
    """The answer of `GET /v1/models/{id}`."""
    return _immediate(200, PICKER_DETAILS + "model", _model_object(model), {})


def build_continue() -> ext_proc.ProcessingResponse:
    """Let the headers pass and wait for the body."""
    return ext_proc.ProcessingResponse(request_headers=ext_proc.HeadersResponse())


def build_pick(
    destinations: Iterable[str], headers: Mapping[str, str], counted: bool = False
) -> ext_proc.ProcessingResponse:
    """Send the request to the first of `destinations` (`host:port`) that answers, with these headers set.

    The end of a `counted` one is told to the access log.
    """
    common = ext_proc.CommonResponse(clear_route_cache=True)
    common.header_mutation.set_headers.extend(_header(name, value) for name, value in headers.items())
    metadata = struct_pb2.Struct()
    marks = {COUNTED_KEY: "1"} if counted else {}
    metadata.update({DESTINATION_NAMESPACE: {DESTINATION_KEY: ",".join(destinations), **marks}})
    return ext_proc.ProcessingResponse(request_body=ext_proc.BodyResponse(response=common), dynamic_metadata=metadata)


def _model_object(model: Model) -> dict[str, Any]:
    described = {"id": model.name, "object": "model", "created": model.created, "owned_by": model.owner}
    return described if model.parent is None else described | {"parent": model.parent}


def _immediate(
    status: int, details: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> ext_proc.ProcessingResponse:
    immediate = ext_proc.ImmediateResponse(
        status=http_status_pb2.HttpStatus(code=status), details=details, body=orjson.dumps(body)
    )
    for name, value in {"content-type": "application/json", **headers}.items():
        immediate.headers.set_headers.append(_header(name, value))
    return ext_proc.ProcessingResponse(immediate_response=immediate)


def _header(name: str, value: str) -> base_pb2.HeaderValueOption:
    return base_pb2.HeaderValueOption(
        header=base_pb2.HeaderValue(key=name, raw_value=value.encode()),
        append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )
