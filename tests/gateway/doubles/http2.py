"""A bare HTTP/2 client over cleartext: unlike httpx, it can give a stream up, and leave an answer unread."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import h2.config
import h2.connection
import h2.events
import orjson


class Http2Client:
    """One connection. `events` gives what arrived, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._connection.initiate_connection()
        self.events: asyncio.Queue[h2.events.Event] = asyncio.Queue()

    def post(self, path: str, headers: Mapping[str, str], body: Any) -> int:
        """Send a request. Returns its stream's number."""
        stream = self._connection.get_next_available_stream_id()
        pseudo = {":method": "POST", ":path": path, ":scheme": "http", ":authority": self._host}
        self._connection.send_headers(stream, [*pseudo.items(), *headers.items()])
        self._connection.send_data(stream, orjson.dumps(body), end_stream=True)
        self._flush()
        return stream

    def reset(self, stream: int) -> None:
        """Give a stream up; the connection stays."""
        self._connection.reset_stream(stream)
        self._flush()

    async def read(self) -> None:
        """Read for ever, acknowledging data as it comes."""
        self._flush()
        while data := await self._reader.read(65536):
            for event in self._connection.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    self._connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self.events.put_nowait(event)
            self._flush()

    def _flush(self) -> None:
        self._writer.write(self._connection.data_to_send())


@asynccontextmanager
async def connect_http2(port: int) -> AsyncIterator[Http2Client]:
    """Connect to a loopback port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    client = Http2Client(reader, writer, f"127.0.0.1:{port}")
    reading = asyncio.create_task(client.read())
    try:
        yield client
    finally:
        reading.cancel()
        writer.close()
