"""The admin port: the operator has this engine inspect, load and unload adapter versions, and drain. Built by ports.py.

Every call is idempotent; answers that take long are 202 and asked for again. Errors are problem documents.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lorafleet_contracts.admin import (
    DRAIN_PATH,
    INSPECT_PATH,
    VERSION_PATH,
    DrainReport,
    InspectRequest,
    ProblemCode,
    VersionRequest,
)
from lorafleet_engine.errors import JobError
from lorafleet_engine.server.bodies import BodyTooLargeError, InvalidBodyError, parse_object, read_body, validate
from lorafleet_engine.server.engine import Engine
from lorafleet_engine.server.inspections import Inspections
from lorafleet_engine.server.problems import answer_problem, make_problem, problem_of
from lorafleet_engine.server.state import answer_bug, answer_http_error
from lorafleet_engine.server.version import Version

MAX_BODY_BYTES = 64 << 10
PATIENCE_SECONDS = 1.0
"""How long a call waits for its result before it answers 202."""
UID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
Handler = Callable[[Request], Awaitable[Response]]


class AdminPort:
    """Handlers over one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inspections = Inspections(engine.loader)

    async def inspect(self, request: Request) -> Response:
        """POST inspect: 202 while it runs, then 200 with the report."""
        uid = _uid(request)
        wanted = validate(InspectRequest, parse_object(await read_body(request, MAX_BODY_BYTES)))
        report = await self._inspections.ask(uid, wanted, PATIENCE_SECONDS)
        if report is None:
            return _answer(202, '{"state":"fetching"}')
        return _answer(200, report.model_dump_json(by_alias=True))

    async def put_version(self, request: Request) -> Response:
        """PUT a version: 200 when it was there, 201 when it is there now, 202 while it comes."""
        uid, digest = _uid(request), _digest(request)
        wanted = validate(VersionRequest, parse_object(await read_body(request, MAX_BODY_BYTES)))
        if self._engine.draining:
            raise JobError(ProblemCode.DRAINING, "this engine is draining")
        version = self._engine.versions.put(uid, digest, wanted)
        if version.settled:
            return _answer_version(200, version)
        await _patiently(version)
        if version.failed and version.problem is not None:
            version.problem_reported = True
            return answer_problem(version.problem)
        return _answer_version(201 if version.settled else 202, version)

    async def delete_version(self, request: Request) -> Response:
        """DELETE a version: 202 while its last requests run, 204 when it is gone or never was."""
        version = self._engine.versions.delete(_uid(request), _digest(request))
        return Response(status_code=204) if version is None else _answer_version(202, version)

    async def drain(self, request: Request) -> Response:
        """POST drain: no new requests from now on; the process stays."""
        self._engine.drain()
        return _answer(202, DrainReport(in_flight=self._engine.in_flight).model_dump_json(by_alias=True))


def build_admin(engine: Engine) -> Starlette:
    """The app of the admin port, without its token gate."""
    port = AdminPort(engine)
    return Starlette(
        routes=[
            Route(INSPECT_PATH, _translated(port.inspect), methods=["POST"]),
            Route(VERSION_PATH, _translated(port.put_version), methods=["PUT"]),
            Route(VERSION_PATH, _translated(port.delete_version), methods=["DELETE"]),
            Route(DRAIN_PATH, _translated(port.drain), methods=["POST"]),
        ],
        exception_handlers={HTTPException: answer_http_error, Exception: answer_bug},
    )


def _translated(handler: Handler) -> Handler:
    async def translate(request: Request) -> Response:
        try:
            return await handler(request)
        except JobError as error:
            return answer_problem(problem_of(error))
        except (InvalidBodyError, BodyTooLargeError) as error:
            return answer_problem(make_problem(ProblemCode.INVALID_REQUEST, str(error)))

    return translate


async def _patiently(version: Version) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await version.done.wait()
            if version.rising is not None:
                await asyncio.shield(version.rising)
    except TimeoutError:
        return


def _uid(request: Request) -> str:
    uid: str = request.path_params["uid"]
    if not UID.match(uid):
        raise JobError(ProblemCode.INVALID_REQUEST, "the uid in the path is malformed")
    return uid


def _digest(request: Request) -> str:
    digest: str = request.path_params["digest"]
    if not DIGEST.match(digest):
        raise JobError(ProblemCode.INVALID_REQUEST, "the digest in the path must be sha256: and 64 hex digits")
    return digest


def _answer(status: int, body: str) -> Response:
    return Response(body, status, media_type="application/json")


def _answer_version(status: int, version: Version) -> Response:
    return _answer(status, version.state().model_dump_json(by_alias=True, exclude_none=True))
