"""The tenant API as an OpenAPI document: what clients may send to the gateway and what they get.

`make openapi` writes it to docs/openapi.json, from which the API is fuzzed.
The requests are those that the engine reads; the gateway answers `/v1/models` and adds refusals of its own.
"""

import json
import sys
from typing import Any

from pydantic.json_schema import models_json_schema

from lorafleet_engine.server.openai_requests import ChatRequest, CompletionRequest

Document = dict[str, Any]
REFUSALS = {
    "400": "The request can't be answered; the message says what to change.",
    "401": "The key is missing, wrong or expired.",
    "404": "The model does not exist or the key may not call it.",
    "408": "The request did not arrive in time.",
    "413": "The body is too large.",
    "431": "The headers are too large.",
    "503": "No replica can answer now; Retry-After says when to come back.",
}
REFERENCE = "#/components/schemas/{model}"


def build_openapi() -> Document:
    """The document, OpenAPI 3.1."""
    _, found = models_json_schema(
        [(ChatRequest, "validation"), (CompletionRequest, "validation")], ref_template=REFERENCE
    )
    schemas = found["$defs"]
    for request in ("ChatRequest", "CompletionRequest"):
        schemas[request]["properties"]["model"] = {"type": "string", "minLength": 1, "maxLength": 256}
        schemas[request]["required"] = sorted({*schemas[request].get("required", ()), "model"})
    return {
        "openapi": "3.1.0",
        "info": {"title": "LoraFleet tenant API", "version": "v1"},
        "security": [{"key": []}],
        "paths": {
            "/v1/chat/completions": {"post": _generation("createChatCompletion", "ChatRequest", "ChatAnswer")},
            "/v1/completions": {"post": _generation("createCompletion", "CompletionRequest", "CompletionAnswer")},
            "/v1/models": {"get": _reading("listModels", "ModelList")},
            "/v1/models/{model}": {"get": _reading("retrieveModel", "Model") | {"parameters": [_MODEL_PARAMETER]}},
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas | _ANSWERS,
        },
    }


def _generation(name: str, request: str, answer: str) -> Document:
    content = {"application/json": _schema(answer), "text/event-stream": {}}
    return {
        "operationId": name,
        "requestBody": {"required": True, "content": {"application/json": _schema(request)}},
        "responses": {"200": {"description": "The answer, or its events.", "content": content}, **_refusals()},
    }


def _reading(name: str, answer: str) -> Document:
    content = {"application/json": _schema(answer)}
    return {
        "operationId": name,
        "responses": {"200": {"description": "What the key may call.", "content": content}, **_refusals()},
    }


def _refusals() -> Document:
    content = {"application/json": _schema("Error")}
    return {status: {"description": text, "content": content} for status, text in REFUSALS.items()}


def _schema(name: str) -> Document:
    return {"schema": {"$ref": REFERENCE.format(model=name)}}


def _object(**properties: Document) -> Document:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: Document) -> Document:
    return {"type": "array", "items": items}


def _choice(**properties: Document) -> Document:
    return _object(index=_COUNT, finish_reason={"enum": ["stop", "length"]}, logprobs=_LOGPROBS, **properties)


def _answer(kind: str, choice: Document) -> Document:
    usage = _object(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT)
    return _object(id=_TEXT, object={"const": kind}, created=_COUNT, model=_TEXT, choices=_array(choice), usage=usage)


_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_LOGPROBS = {"type": ["object", "null"]}
_MODEL_PARAMETER = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
_MODEL = _object(id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT)
_ANSWERS: Document = {
    "ChatAnswer": _answer("chat.completion", _choice(message=_object(role={"const": "assistant"}, content=_TEXT))),
    "CompletionAnswer": _answer("text_completion", _choice(text=_TEXT)),
    "Model": _MODEL,
    "ModelList": _object(object={"const": "list"}, data=_array(_MODEL)),
    "Error": _object(
        error=_object(
            message={"type": "string", "minLength": 1},
            type=_TEXT,
            param={"type": ["string", "null"]},
            code={"type": ["string", "null"]},
        )
    ),
}


if __name__ == "__main__":
    json.dump(build_openapi(), sys.stdout, indent=2)
    sys.stdout.write("\n")
