"""Reads a JSON body of bounded size into a wire model. Used by every port; each translates the errors its own way."""

from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

Model = TypeVar("Model", bound=BaseModel)


class BodyTooLargeError(Exception):
    """The body exceeds `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")


class InvalidBodyError(Exception):
    """The body is no JSON object of the expected shape; `field` is the dotted path of the first wrong field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises BodyTooLargeError as soon as it is known to be too large."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLargeError(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise BodyTooLargeError(limit)
    return bytes(body)


def parse_object(body: bytes) -> dict[str, object]:
    """The JSON object in `body`. Raises InvalidBodyError."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidBodyError(f"the body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidBodyError("the body must be a JSON object")
    return value


def validate(model: type[Model], value: dict[str, object]) -> Model:
    """`value` as `model`. Raises InvalidBodyError with the first wrong field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidBodyError(f"{field}: {first['msg']}" if field else first["msg"], field or None) from error
