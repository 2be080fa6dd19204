"""Serves gRPC methods to Envoy, each on a port, on the picker's own event loop. Used by shell/service.py.

A pick is some hundred bytes in and out, and its cost is that of carrying them (core/http2_frames.py says why no library
does). Only what Envoy asks for on loopback is spoken: no TLS, no compression, no deadlines.
"""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

from lorafleet_gateway.core.http2_frames import (
    DEFAULT_WINDOW,
    LARGEST_WINDOW,
    MAX_FRAME,
    RESPONSE_HEADERS,
    Code,
    Flag,
    Frame,
    FrameBuffer,
    Kind,
    Setting,
    WireError,
    build_frame,
    build_goaway,
    build_reset,
    build_settings,
    build_trailers,
    build_window_update,
    read_data,
    read_increment,
    read_settings,
)

PREFIX = struct.Struct(">?I")
"""Before each message: whether it is compressed, and its length."""
CREDIT = 1 << 24
"""Bytes that arrive on a connection before the other side is let send as many more."""

log = logging.getLogger(__name__)


class Status(IntEnum):
    """How gRPC says that a stream ended."""

    OK = 0
    INTERNAL = 13


class Stream:
    """One gRPC stream of serialized messages. Its handler is cancelled when the other side gives it up.

    `window` is what may be sent at the moment, `credit` what arrived since more was asked for, both in bytes.
    """

    def __init__(self, number: int, window: int, connection: "_Connection") -> None:
        self.number = number
        self.window = window
        self.credit = 0
        self.opened = False
        self.ended = False
        self._connection = connection
        self._arrived = bytearray()
        self._news: asyncio.Future[None] | None = None

    async def read(self) -> bytes | None:
        """The next message; None when there will be no more. Raises WireError."""
        while (message := self._take()) is None and not self.ended:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        return message

    async def write(self, message: bytes) -> None:
        """Send a message; waits while the other side has no room for it."""
        await self._connection.send(self, PREFIX.pack(False, len(message)) + message)

    def feed(self, data: bytes, ended: bool) -> None:
        """Take what arrived, in order; `ended` when it was the last."""
        self._arrived += data
        self.ended = self.ended or ended
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _take(self) -> bytes | None:
        if len(self._arrived) < PREFIX.size:
            return None
        compressed, length = PREFIX.unpack_from(self._arrived)
        if compressed or length > self._connection.largest:
            raise WireError(f"a message of {length} bytes (compressed: {compressed})")
        end = PREFIX.size + length
        if len(self._arrived) < end:
            return None
        message = bytes(self._arrived[PREFIX.size : end])
        del self._arrived[:end]
        return message


Method = Callable[[Stream], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class GrpcPort:
    """A port of loopback, what answers its calls, and the largest message that a call may get, in bytes.

    `on_lost` is called when the other side has left: its last connection is gone, and not by us.
    """

    number: int
    method: Method
    largest: int
    grace_seconds: float
    on_lost: Callable[[], None] | None = None


@asynccontextmanager
async def serve_grpc(port: GrpcPort) -> AsyncIterator[None]:
    """Serve; at the end take nothing new, and give running calls their time."""
    connections: set[_Connection] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(port, connections), "127.0.0.1", port.number)
    try:
        yield
    finally:
        server.close()
        running = [task for connection in connections for task in connection.tasks.values()]
        if running:
            await asyncio.wait(running, timeout=port.grace_seconds)
        for connection in list(connections):
            connection.close(Code.NO_ERROR)


class _Connection(asyncio.Protocol):
    """One HTTP/2 connection of Envoy, with a task for each of its streams."""

    def __init__(self, port: GrpcPort, connections: "set[_Connection]") -> None:
        self.largest = port.largest
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._calls: dict[int, Stream] = {}
        self._method = port.method
        self._connections = connections
        self._on_lost = port.on_lost
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._frames = FrameBuffer()
        self._out: list[bytes] = []
        self._newest = 0
        self._window = self._initial_window = DEFAULT_WINDOW
        self._credit = 0
        self._room = asyncio.Event()
        self._readers: dict[int, Callable[[Frame], None]] = {
            Kind.DATA: self._read_data,
            Kind.HEADERS: self._read_headers,
            Kind.RST_STREAM: self._read_reset,
            Kind.SETTINGS: self._read_settings,
            Kind.PING: self._read_ping,
            Kind.WINDOW_UPDATE: self._read_window_update,
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self._write(build_settings({Setting.INITIAL_WINDOW_SIZE: self.largest}))
        self._write(build_window_update(0, LARGEST_WINDOW - DEFAULT_WINDOW))

    def connection_lost(self, _: Exception | None) -> None:
        """Called by the event loop."""
        self._connections.discard(self)
        for number in list(self.tasks):
            self._cancel(number)
        if self._on_lost is not None and not self._connections and not self._closed:
            self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            for frame in self._frames.feed(data):
                if reader := self._readers.get(frame.kind):
                    reader(frame)
        except WireError as error:
            log.warning("closing a connection: %s", error)
            self.close(Code.PROTOCOL_ERROR)

    def close(self, code: Code) -> None:
        """Say goodbye and close; what still runs is cancelled."""
        self._closed = True
        self._write(build_goaway(self._newest, code))
        self._flush()
        self._transport.close()

    async def send(self, call: Stream, data: bytes) -> None:
        """Send `data` on the stream of `call`, as fast as the other side has room for it."""
        self._open(call)
        while data:
            room = min(call.window, self._window, MAX_FRAME)
            if room > 0:
                part, data = data[:room], data[room:]
                call.window -= len(part)
                self._window -= len(part)
                self._write(build_frame(Kind.DATA, Flag.NONE, call.number, part))
            else:
                self._room.clear()
                await self._room.wait()

    def _open(self, call: Stream) -> None:
        if not call.opened:
            call.opened = True
            self._write(build_frame(Kind.HEADERS, Flag.END_HEADERS, call.number, RESPONSE_HEADERS))

    async def _run(self, call: Stream) -> None:
        status = Status.OK
        try:
            await self._method(call)
        except Exception:
            log.exception("a call failed")
            status = Status.INTERNAL
        self._forget(call.number)
        self._open(call)
        self._write(build_trailers(call.number, status))
        if not call.ended:
            self._write(build_reset(call.number))

    def _cancel(self, number: int) -> None:
        """Forgotten here, as a task that has not begun yet does nothing when it is cancelled."""
        self.tasks[number].cancel()
        self._forget(number)

    def _forget(self, number: int) -> None:
        self._calls.pop(number, None)
        self.tasks.pop(number, None)

    def _read_headers(self, frame: Frame) -> None:
        ended = bool(frame.flags & Flag.END_STREAM)
        if call := self._calls.get(frame.stream):
            call.feed(b"", ended)
        elif frame.stream > self._newest:
            self._newest = frame.stream
            call = self._calls[frame.stream] = Stream(frame.stream, self._initial_window, self)
            call.ended = ended
            self.tasks[frame.stream] = self._loop.create_task(self._run(call))

    def _read_data(self, frame: Frame) -> None:
        size = len(frame.payload)
        self._credit += size
        if self._credit >= CREDIT:
            self._write(build_window_update(0, self._credit))
            self._credit = 0
        if call := self._calls.get(frame.stream):
            call.feed(read_data(frame), bool(frame.flags & Flag.END_STREAM))
            call.credit += size
            if call.credit >= self.largest // 2:
                self._write(build_window_update(call.number, call.credit))
                call.credit = 0

    def _read_reset(self, frame: Frame) -> None:
        if frame.stream in self.tasks:
            self._cancel(frame.stream)

    def _read_settings(self, frame: Frame) -> None:
        if frame.flags & Flag.ACK:
            return
        window = read_settings(frame.payload).get(Setting.INITIAL_WINDOW_SIZE, self._initial_window)
        for call in self._calls.values():
            call.window += window - self._initial_window
        self._initial_window = window
        self._room.set()
        self._write(build_frame(Kind.SETTINGS, Flag.ACK, 0))

    def _read_ping(self, frame: Frame) -> None:
        if not frame.flags & Flag.ACK:
            self._write(build_frame(Kind.PING, Flag.ACK, 0, frame.payload))

    def _read_window_update(self, frame: Frame) -> None:
        more = read_increment(frame.payload)
        if not frame.stream:
            self._window += more
        elif call := self._calls.get(frame.stream):
            call.window += more
        self._room.set()

    def _write(self, frame: bytes) -> None:
        """Send with everything else that this turn of the loop has to say."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        if data and not self._transport.is_closing():
            self._transport.write(data)
