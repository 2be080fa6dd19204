"""Requests to the API server over one shared session. Called by reflectors and the programs' shells; never retries."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson

from lorafleet_kube.access import Access
from lorafleet_kube.errors import ApiError, UnreachableError

APPLY_PATCH = "application/apply-patch+yaml"
CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 20.0

Object = dict[str, Any]


class KubeApi:
    """A connected API server; `connect` makes one."""

    def __init__(self, session: aiohttp.ClientSession, access: Access) -> None:
        self._session = session
        self._access = access

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Object:
        """One object or list. Raises ApiError (code 404 when absent) or UnreachableError."""
        return await self.request("GET", path, params=params)

    async def apply(self, path: str, body: Mapping[str, Any], *, manager: str, force: bool = False) -> Object:
        """Server-side apply; strict about unknown fields. Raises ApiError (409 on a conflict without `force`)."""
        params = {"fieldManager": manager, "force": "true" if force else "false", "fieldValidation": "Strict"}
        return await self.request("PATCH", path, params=params, body=body, content_type=APPLY_PATCH)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        timeout_seconds: float = REQUEST_SECONDS,
    ) -> Object:
        """Send one request and return the decoded answer. Raises ApiError or UnreachableError."""
        headers = await self._access.headers() | {"accept": "application/json"}
        data = None
        if body is not None:
            data, headers["content-type"] = orjson.dumps(body), content_type
        limits = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(
                method, self._access.server + path, params=params, data=data, headers=headers, timeout=limits
            ) as response:
                payload = await response.read()
                if response.status >= 400:
                    raise _api_error(response.status, payload)
                return _decode(payload)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{method} {path}: {error!r}") from error

    async def watch(self, path: str, params: Mapping[str, str], idle_seconds: float) -> AsyncIterator[Object]:
        """Yield watch events until the server ends the stream.

        Raises ApiError for a refused watch and for an ERROR event, UnreachableError when nothing came for
        `idle_seconds` or the connection broke.
        """
        headers = await self._access.headers() | {"accept": "application/json"}
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=idle_seconds)
        try:
            async with self._session.get(
                self._access.server + path, params={**params, "watch": "1"}, headers=headers, timeout=limits
            ) as response:
                if response.status >= 400:
                    raise _api_error(response.status, await response.read())
                async for line in _lines(response.content):
                    event = _decode(line)
                    if event["type"] == "ERROR":
                        raise _status_error(event["object"])
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"watch {path}: {error!r}") from error

    @asynccontextmanager
    async def websocket(
        self, path: str, params: Mapping[str, str], protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """An upgraded connection. Raises UnreachableError, or ApiError when the upgrade is refused."""
        headers = await self._access.headers()
        url = self._access.server + path
        try:
            socket = await self._session.ws_connect(url, params=params, protocols=[protocol], headers=headers)
        except aiohttp.WSServerHandshakeError as error:
            raise ApiError(error.status, "", f"{path}: {error.message}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{path}: {error!r}") from error
        async with socket:
            yield socket


@asynccontextmanager
async def connect(access: Access) -> AsyncIterator[KubeApi]:
    """Open the one session that everything in this process shares."""
    connector = aiohttp.TCPConnector(ssl=await asyncio.to_thread(access.tls), limit=64)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield KubeApi(session, access)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    # not StreamReader.readline: it refuses lines above its buffer limit, and objects may be larger
    rest = bytearray()
    async for chunk in content.iter_any():
        rest += chunk
        *lines, tail = rest.split(b"\n")
        rest = bytearray(tail)
        for line in lines:
            if line:
                yield bytes(line)


def _decode(payload: bytes) -> Object:
    try:
        decoded: Object = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise UnreachableError(f"the answer is no JSON: {payload[:200]!r}") from error
    return decoded


def _api_error(code: int, payload: bytes) -> ApiError:
    try:
        return _status_error(orjson.loads(payload), code)
    except (orjson.JSONDecodeError, AttributeError):
        return ApiError(code, "", payload[:200].decode("utf-8", "replace"))


def _status_error(status: Object, code: int = 500) -> ApiError:
    return ApiError(int(status.get("code") or code), str(status.get("reason", "")), str(status.get("message", "")))
