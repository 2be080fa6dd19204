"""The picker's gRPC port against gRPC's own client: messages, ends, windows, and what a client may do to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import grpc
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded

from lorafleet_gateway.core.http2_frames import (
    DEFAULT_WINDOW,
    MAX_FRAME,
    PREFACE,
    Flag,
    FrameBuffer,
    Kind,
    build_frame,
    build_reset,
    build_settings,
)
from lorafleet_gateway.shell.grpc_port import GrpcPort, Method, Stream, serve_grpc
from tests.gateway.doubles.stack import free_ports

LARGEST = 1 << 20
METHOD = "/test/method"


async def echo(call: Stream) -> None:
    while (message := await call.read()) is not None:
        if message == b"fail":
            raise LookupError
        await call.write(message)


async def answer_once(call: Stream) -> None:
    await call.write(await call.read() or b"nothing")


@dataclass
class Waiting:
    """A method that answers when the gate opens, and what it saw."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    count: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, call: Stream) -> None:
        self.count += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        await call.write(b"at last")

    async def reaches(self, count: int) -> None:
        async with asyncio.timeout(20):
            while self.count < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def served(method: Method) -> AsyncIterator[grpc.aio.Channel]:
    (port,) = free_ports(1)
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_receive_message_length", -1)]) as channel,
        serve_grpc(GrpcPort(port, method, LARGEST, grace_seconds=0.1)),
    ):
        yield channel


async def test_messages_of_any_length_go_both_ways_in_order() -> None:
    sent = [b"", b"x", b"y" * 70_000, b"z" * LARGEST, b"end"]
    async with served(echo) as channel:
        call = channel.stream_stream(METHOD)(iter(sent))
        assert [each async for each in call] == sent
        assert await call.code() is grpc.StatusCode.OK


async def test_a_handler_ends_its_stream_while_the_other_side_is_open() -> None:
    async with served(answer_once) as channel:
        call = channel.stream_stream(METHOD)()
        await call.write(b"one")
        async with asyncio.timeout(10):
            assert await call.read() == b"one"
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("message", [b"fail", b"x" * (LARGEST + 1)])
async def test_what_cannot_be_served_ends_its_own_stream_alone(message: bytes) -> None:
    async with served(echo) as channel:
        other = channel.stream_stream(METHOD)()
        await other.write(b"before")
        assert await other.read() == b"before"
        refused = channel.stream_stream(METHOD)(iter([message]))
        assert await refused.code() is grpc.StatusCode.INTERNAL
        await other.write(b"after")
        assert await other.read() == b"after"


async def test_a_client_that_gives_up_cancels_its_handler() -> None:
    waiting = Waiting()
    async with served(waiting.wait) as channel:
        call = channel.stream_stream(METHOD)(iter([b"x"]))
        await waiting.reaches(1)
        call.cancel()
        async with asyncio.timeout(10):
            await waiting.cancelled.wait()


async def test_a_lost_connection_cancels_its_handlers() -> None:
    waiting = Waiting()
    async with served(waiting.wait) as channel:
        call = channel.stream_stream(METHOD)(iter([b"x"]))
        await waiting.reaches(1)
        await channel.close()
        async with asyncio.timeout(10):
            await waiting.cancelled.wait()
        assert call.done()


async def test_as_many_wait_as_the_cold_queue_lets() -> None:
    waiting = Waiting()
    async with served(waiting.wait) as channel:
        calls = [channel.stream_stream(METHOD)(iter([b"x"])) for _ in range(300)]
        reading = [asyncio.ensure_future(call.read()) for call in calls]
        await waiting.reaches(300)
        waiting.gate.set()
        assert set(await asyncio.gather(*reading)) == {b"at last"}


@pytest.mark.parametrize(("grace", "answered"), [(10.0, True), (0.05, False)])
async def test_running_calls_have_their_time_at_the_end_and_no_more(grace: float, answered: bool) -> None:
    waiting = Waiting()
    (port,) = free_ports(1)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        async with serve_grpc(GrpcPort(port, waiting.wait, LARGEST, grace)):
            call = channel.stream_stream(METHOD)(iter([b"x"]))
            await waiting.reaches(1)
            if answered:
                asyncio.get_running_loop().call_later(0.1, waiting.gate.set)
        async with asyncio.timeout(10):
            replies = [each async for each in call] if answered else []
            assert (await call.code() is grpc.StatusCode.OK) is answered
        assert replies == [b"at last"] * answered
        assert waiting.cancelled.is_set() is not answered


async def test_no_more_is_sent_than_the_other_side_has_room_for() -> None:
    async def answer_long(call: Stream) -> None:
        await call.write(b"x" * 200_000)

    (port,) = free_ports(1)
    http2 = H2Connection(H2Configuration(client_side=True))
    http2.initiate_connection()
    http2.send_headers(1, [(":method", "POST"), (":path", "/"), (":scheme", "http"), (":authority", "x")])
    taken = 0
    async with serve_grpc(GrpcPort(port, answer_long, LARGEST, 1.0)), asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        ended = False
        while not ended:
            writer.write(http2.data_to_send())
            for event in http2.receive_data(await reader.read(1 << 16)):  # raises when its windows are passed
                ended |= isinstance(event, StreamEnded)
                taken += len(event.data) if isinstance(event, DataReceived) else 0
            if taken and not http2.remote_flow_control_window(1):
                http2.acknowledge_received_data(DEFAULT_WINDOW, 1)
        writer.close()
    assert taken == 200_005


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", PREFACE + b"\xff" * 9])
async def test_a_peer_that_speaks_something_else_is_put_out(sent: bytes) -> None:
    (port,) = free_ports(1)
    async with serve_grpc(GrpcPort(port, echo, LARGEST, 1.0)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(10):
            with suppress(ConnectionError):
                await reader.read()
        writer.close()


async def test_a_call_that_is_given_up_before_it_began_leaves_nothing() -> None:
    (port,) = free_ports(1)
    frames, kinds = FrameBuffer(), list[tuple[int, int]]()
    list(frames.feed(PREFACE))
    async with serve_grpc(GrpcPort(port, echo, LARGEST, 1.0)), asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        given_up = build_frame(Kind.HEADERS, Flag.END_HEADERS, 1) + build_reset(1)
        content = build_frame(Kind.DATA, Flag.NONE, 1, bytes(MAX_FRAME)) * (LARGEST // MAX_FRAME)
        writer.write(PREFACE + build_settings({}) + given_up + content + build_frame(Kind.PING, Flag.NONE, 0, bytes(8)))
        while (Kind.PING, 0) not in kinds:
            kinds += [(each.kind, each.stream) for each in frames.feed(await reader.read(1 << 16))]
        writer.close()
    assert (Kind.WINDOW_UPDATE, 1) not in kinds  # which a stream that is still there would get


async def test_the_loss_of_the_last_connection_is_told() -> None:
    (port,) = free_ports(1)
    told = list[bool]()
    async with asyncio.timeout(20):
        async with serve_grpc(GrpcPort(port, echo, LARGEST, 1.0, lambda: told.append(True))):
            one, other, third = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for reader, writer in (one, other, third):
                await reader.readexactly(1)
                writer.write(PREFACE + build_settings({}))
            for (reader, writer), expected in ((one, []), (other, []), (third, [True])):
                writer.write_eof()
                await reader.read()
                writer.close()
                assert told == expected
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.readexactly(1)
        await reader.read()
        writer.close()
    assert told == [True]  # at the end it was we who left
