import asyncio
import socket
from multiprocessing.connection import Connection

import pytest

from lorafleet_engine.server.children import frame_header


@pytest.mark.parametrize("payload", [b"", b"x", b"y" * 100_000])
def test_frames_are_those_of_multiprocessing(payload: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        connection = Connection(theirs.detach())
        received = asyncio.run(_exchange(ours, connection, payload))
        connection.close()

    assert received == payload


async def _exchange(ours: socket.socket, connection: "Connection[bytes, bytes]", payload: bytes) -> bytes:
    sending = asyncio.to_thread(ours.sendall, frame_header(len(payload)) + payload)
    received, _ = await asyncio.gather(asyncio.to_thread(connection.recv_bytes), sending)
    return received


def test_long_frames_have_a_long_header() -> None:
    assert frame_header(1 << 31) == b"\xff\xff\xff\xff" + (1 << 31).to_bytes(8, "big")
