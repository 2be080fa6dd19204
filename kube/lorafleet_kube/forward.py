"""A port of a pod on this machine's loopback, through the API server, as `kubectl port-forward` does it.

Called by commands for people; needs `get` and `create` on pods/portforward. One connection is one upgraded request.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp

from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import KubeError
from lorafleet_kube.paths import PODS

PROTOCOL = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
CHUNK = 1 << 16


@asynccontextmanager
async def forward(api: KubeApi, pod: tuple[str, str], port: int) -> AsyncIterator[str]:
    """`port` of the pod (namespace, name), as HOST:PORT here while it is open. One that fails to connect is cut."""
    pipes: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        pipes.add(task)
        task.add_done_callback(pipes.discard)
        with suppress(KubeError, ConnectionError, asyncio.CancelledError):
            await _pipe(api, pod, port, (reader, writer))
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in pipes:
            task.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)


async def _pipe(
    api: KubeApi, pod: tuple[str, str], port: int, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    path = PODS.path(*pod, subresource="portforward")
    async with api.websocket(path, {"ports": str(port)}, PROTOCOL) as socket:
        sending = asyncio.create_task(_send(streams[0], socket))
        try:
            await _receive(socket, streams[1])
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse) -> None:
    while chunk := await reader.read(CHUNK):
        await socket.send_bytes(bytes([DATA]) + chunk)


async def _receive(socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
    greeted = set[int]()
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, payload = message.data[0], message.data[1:]
        if channel not in greeted:
            greeted.add(channel)  # a channel's first message is the port's number
        elif channel == ERROR:
            return
        elif channel == DATA:
            writer.write(payload)
            await writer.drain()
