"""The serving port: OpenAI chat and completions for the version that the gateway's header names. Built by ports.py.

Every error leaves here in OpenAI's shape; a client never sees a traceback.
"""

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lorafleet_contracts.names import HEADER_REQUEST_ID
from lorafleet_engine.server.answers import Answer, AnswerPlan
from lorafleet_engine.server.bodies import BodyTooLargeError, InvalidBodyError, parse_object, read_body, validate
from lorafleet_engine.server.chat import ChatShape, plan_chat
from lorafleet_engine.server.completions import CompletionShape, plan_completion
from lorafleet_engine.server.engine import Engine, TextTools
from lorafleet_engine.server.metrics import RequestWatch
from lorafleet_engine.server.openai_errors import OpenAIError, unavailable
from lorafleet_engine.server.openai_requests import (
    ChatRequest,
    CompletionRequest,
    SamplingRequest,
    refuse_unsupported,
)
from lorafleet_engine.server.shapes import AnswerHead, AnswerShape
from lorafleet_engine.server.stream import ClientGoneError, Exchange, send_events, send_plain
from lorafleet_engine.server.targets import Target, find_target

logger = logging.getLogger(__name__)
MAX_BODY_BYTES = 8 << 20
CLIENT_GONE = 499
COLD_PATIENCE_S = 5.0
"""How long a request waits for a version that is on its way, before the gateway is told to try elsewhere."""


@dataclass(frozen=True, slots=True)
class Work:
    """A request that was read and judged: what to generate and how to write it."""

    request: SamplingRequest
    plan: AnswerPlan
    shape: AnswerShape
    id_prefix: str


@dataclass(frozen=True, slots=True)
class Job:
    """For whom a request is answered, and with what."""

    target: Target
    tools: TextTools
    watch: RequestWatch


Reader = Callable[[dict[str, object], Target, TextTools], Awaitable[Work]]


async def read_chat(body: dict[str, object], target: Target, tools: TextTools) -> Work:
    """The work of a chat request. Raises OpenAIError, InvalidBodyError."""
    request = validate(ChatRequest, body)
    return Work(request, await plan_chat(request, target, tools), ChatShape(), "chatcmpl-")


async def read_completion(body: dict[str, object], target: Target, tools: TextTools) -> Work:
    """The work of a completion request. Raises OpenAIError, InvalidBodyError."""
    request = validate(CompletionRequest, body)
    return Work(request, await plan_completion(request, target, tools), CompletionShape(), "cmpl-")


class AnswerEndpoint:
    """ASGI endpoint of one kind of answer."""

    def __init__(self, engine: Engine, read: Reader) -> None:
        self._engine = engine
        self._read = read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request and count it."""
        request = Request(scope, receive)
        name = request.headers.get(HEADER_REQUEST_ID, "")[:128] or secrets.token_hex(16)
        exchange = Exchange(send, receive, ((HEADER_REQUEST_ID.encode(), name.encode("latin-1")),))
        self._engine.count(+1)
        try:
            await self._answer(request, exchange)
        except OpenAIError as error:
            await _send_error(error, exchange, scope)
        finally:
            self._engine.count(-1)

    async def _answer(self, request: Request, exchange: Exchange) -> None:
        target = find_target(request.headers, self._engine)
        tools = self._engine.text
        if tools is None:
            raise unavailable("this engine is starting", "not_ready")
        status = HTTPStatus.OK.value
        watch = self._engine.metrics.watch(target.label, target.tenant)
        with self._engine.versions.using(target.version):
            if target.version is not None:
                self._engine.versions.prefetch(target.version)
            try:
                body = parse_object(await read_body(request, MAX_BODY_BYTES))
                refuse_unsupported(body)
                await self._bring(target, exchange, watch)
                work = await self._read(body, target, tools)
                await self._run(Job(target, tools, watch), work, exchange)
            except InvalidBodyError as error:
                status = HTTPStatus.BAD_REQUEST.value
                raise OpenAIError(status, str(error), param=error.field) from error
            except BodyTooLargeError as error:
                status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE.value
                raise OpenAIError(status, str(error), code="body_too_large") from error
            except OpenAIError as error:
                status = error.status
                raise
            except (ClientGoneError, ClientDisconnect):
                status = CLIENT_GONE
            finally:
                watch.end(status)

    async def _bring(self, target: Target, exchange: Exchange, watch: RequestWatch) -> None:
        """Wait for the version that is to answer, if it is on its way. Raises OpenAIError when it does not come."""
        version = target.version
        if version is None:
            return
        start_tier, began = version.nearest, time.perf_counter()
        watch.count_lookup(start_tier)
        if version.on_device:
            return
        await exchange.unless_gone(lambda: self._engine.versions.ready(version, COLD_PATIENCE_S))
        if not version.on_device:
            raise unavailable("the version asked for is still on its way to this engine", "version_missing")
        self._engine.metrics.observe_cold(start_tier, time.perf_counter() - began)

    async def _run(self, job: Job, work: Work, exchange: Exchange) -> None:
        target = job.target
        answer = Answer(self._engine, work.plan, job.tools.tokenizer, job.watch)
        head = AnswerHead(
            id=work.id_prefix + secrets.token_hex(12),
            created=int(time.time()),
            model=work.request.model,
            fingerprint=target.fingerprint,
        )
        options = work.request.stream_options
        try:
            if work.request.stream:
                usage = options is not None and options.include_usage
                await exchange.unless_gone(lambda: send_events(exchange, head, work.shape, answer, include_usage=usage))
            else:
                await exchange.unless_gone(lambda: send_plain(exchange, head, work.shape, answer))
        finally:
            self._count_tokens(target, answer)

    def _count_tokens(self, target: Target, answer: Answer) -> None:
        """What was refused before its first token costs nothing: the gateway tries it elsewhere."""
        if answer.completion_tokens:
            counts = (answer.prompt_tokens, answer.completion_tokens)
            self._engine.usage.add(target.usage_key, *counts, seq=self._engine.changes.bump())
            self._engine.metrics.count_tokens(target.label, target.tenant, *counts)


def build_serving(engine: Engine) -> Starlette:
    """The app of the serving port, without its token gate."""
    return Starlette(
        routes=[
            Route("/v1/chat/completions", AnswerEndpoint(engine, read_chat), methods=["POST"]),
            Route("/v1/completions", AnswerEndpoint(engine, read_completion), methods=["POST"]),
        ],
        exception_handlers={HTTPException: _answer_http_error, Exception: _answer_bug},
    )


async def _send_error(error: OpenAIError, exchange: Exchange, scope: Scope) -> None:
    response = error.response()
    response.raw_headers.extend(exchange.headers)
    await response(scope, exchange.receive, exchange.send)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return OpenAIError(status, f"{request.method} {request.url.path} is not served here", code="unknown_url").response()


async def _answer_bug(request: Request, error: Exception) -> Response:
    return OpenAIError(500, "the engine met an error of its own; its log has the details", code="internal").response()
