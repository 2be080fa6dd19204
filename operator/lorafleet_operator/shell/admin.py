"""Calls of the engines' admin port, fenced. Called by calls.py; waits out 202, retries nothing else."""

import asyncio
from dataclasses import dataclass, field

import aiohttp
import orjson
from pydantic import ValidationError

from lorafleet_contracts.admin import (
    INSPECT_PATH,
    VERSION_PATH,
    AdapterReport,
    InspectRequest,
    Problem,
    VersionRequest,
    Wire,
)
from lorafleet_contracts.names import HEADER_REQUEST_ID, EnginePort, version_key
from lorafleet_operator.errors import EngineRefusedError, EngineUnreachableError
from lorafleet_operator.shell.audit import Act, audited
from lorafleet_operator.shell.engines import engine_url, read_bounded
from lorafleet_operator.shell.lease import Lease
from lorafleet_operator.shell.trust import Trust

ACCEPTED = 202
FIRST_POLL_SECONDS = 0.05
MAX_POLL_SECONDS = 1.0
REQUEST_SECONDS = 10.0
"""Engines answer within a second or so, if only that they are at it."""
CONNECT_SECONDS = 3.0
WHOLE_SECONDS = 900.0
"""How long one inspection or load may take in all before it counts as failed."""


@dataclass(frozen=True, slots=True)
class AdminAddress:
    """Where the admin port of a replica is, what it proves itself with (empty: plain HTTP), and what opens it."""

    replica: str
    ip: str
    token: str = field(repr=False)
    server_name: str = ""


class EngineAdmin:
    """The admin port of any engine. Every act is audited."""

    def __init__(self, session: aiohttp.ClientSession, lease: Lease, trust: Trust) -> None:
        self._session = session
        self._trust = trust
        self._lease = lease

    async def inspect(self, address: AdminAddress, uid: str, request: InspectRequest) -> AdapterReport:
        """Have an adapter's files fetched and verified. Raises NotLeadingError or EngineError."""
        act = Act("inspect", uid, address.replica, self._lease.identity)
        with audited(act):
            answer = await self._until_done(address, act, "POST", INSPECT_PATH.format(uid=uid), request)
            try:
                return AdapterReport.model_validate_json(answer)
            except ValidationError as error:
                raise EngineUnreachableError(f"{address.ip}: unreadable report: {error}") from error

    async def load(self, address: AdminAddress, version: tuple[str, str], request: VersionRequest) -> None:
        """Have a version (uid, digest) loaded. Raises NotLeadingError or EngineError."""
        path = VERSION_PATH.format(uid=version[0], digest=version[1])
        name = f"{request.display.namespace}/{request.display.name}"
        act = Act("load", version_key(*version), address.replica, self._lease.identity, name)
        with audited(act):
            await self._until_done(address, act, "PUT", path, request)

    async def unload(self, address: AdminAddress, version: tuple[str, str]) -> None:
        """Have a version drained and freed; one that is not there is as good. Raises NotLeadingError or EngineError."""
        path = VERSION_PATH.format(uid=version[0], digest=version[1])
        act = Act("unload", version_key(*version), address.replica, self._lease.identity)
        with audited(act):
            try:
                await self._call(address, act, "DELETE", path, None)
            except EngineRefusedError as error:
                if error.problem.status != 404:
                    raise

    async def _until_done(self, address: AdminAddress, act: Act, method: str, path: str, request: Wire) -> bytes:
        pause = FIRST_POLL_SECONDS
        try:
            async with asyncio.timeout(WHOLE_SECONDS):
                while True:
                    status, answer = await self._call(address, act, method, path, request)
                    if status != ACCEPTED:
                        return answer
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, MAX_POLL_SECONDS)
        except TimeoutError as error:
            raise EngineUnreachableError(f"{address.ip}: not done after {WHOLE_SECONDS:.0f} s") from error

    async def _call(
        self, address: AdminAddress, act: Act, method: str, path: str, request: Wire | None
    ) -> tuple[int, bytes]:
        body = None if request is None else request.model_dump_json(by_alias=True, exclude_none=True).encode()
        headers = {
            "authorization": f"Bearer {address.token}",
            "content-type": "application/json",
            "user-agent": f"lorafleet-operator/{act.actor}",
            HEADER_REQUEST_ID: act.request_id,
        }
        limits = aiohttp.ClientTimeout(total=REQUEST_SECONDS, sock_connect=CONNECT_SECONDS)
        self._lease.check()
        try:
            async with self._session.request(
                method,
                engine_url(address.ip, EnginePort.ADMIN, path, tls=bool(address.server_name)),
                data=body,
                headers=headers,
                timeout=limits,
                allow_redirects=False,
                **self._trust.options(address.server_name),
            ) as response:
                answer = await read_bounded(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnreachableError(f"{address.ip}: {error!r}") from error
        if response.status >= 300:
            raise _refused(address, response.status, answer)
        return response.status, answer


def _refused(address: AdminAddress, status: int, answer: bytes) -> EngineRefusedError | EngineUnreachableError:
    try:
        return EngineRefusedError(Problem.model_validate(orjson.loads(answer)))
    except (orjson.JSONDecodeError, ValidationError):
        return EngineUnreachableError(f"{address.ip}: status {status} without a problem document")
