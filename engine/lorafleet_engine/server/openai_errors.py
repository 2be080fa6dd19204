"""OpenAI-shaped errors of the serving port. Raised in the serving code, turned into an answer in serving.py."""

import orjson
from starlette.responses import Response

from lorafleet_contracts.names import HEADER_RETRY
from lorafleet_engine.messages import Rejected


class OpenAIError(Exception):
    """An error a client sees. `retry`: another replica may serve this request now."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry = retry

    def body(self) -> dict[str, object]:
        """The `error` object as the official clients read it."""
        kind = {401: "authentication_error", 404: "not_found_error"}.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The whole answer."""
        headers = {HEADER_RETRY: "1", "retry-after": "1"} if self.retry else {}
        return Response(orjson.dumps(self.body()), self.status, headers, "application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> OpenAIError:
    """A 400 that the client must change something about."""
    return OpenAIError(400, message, code=code, param=param)


def unavailable(message: str, code: str) -> OpenAIError:
    """A 503 that the gateway retries on the next replica."""
    return OpenAIError(503, message, code=code, retry=True)


def too_long(prompt_tokens: int, window: int) -> OpenAIError:
    """The prompt does not fit the window."""
    return invalid(
        f"the prompt has {prompt_tokens} tokens, this model's window of {window} must hold an answer too",
        "messages",
        "context_length_exceeded",
    )


def rejected(news: Rejected) -> OpenAIError:
    """What the loop's refusal means to a client."""
    if news.code in ("invalid", "context_length_exceeded"):
        return invalid(news.message, code=news.code)
    if news.code == "does_not_fit":
        return OpenAIError(400, news.message, code="context_length_exceeded")
    return unavailable(news.message, news.code)


def refuse_token() -> Response:
    """The answer to a request without an accepted token."""
    return OpenAIError(401, "a bearer token of this port is needed", code="invalid_api_key").response()
