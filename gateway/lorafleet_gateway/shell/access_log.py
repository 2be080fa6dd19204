"""Hears from Envoy which requests have ended. Envoy calls it on the picker's port, for requests whose end matters only.

Envoy writes an entry once, when the last byte was sent or the client has left (core/envoy_listeners.py says for which).
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc


class AccessLog(als_pb2_grpc.AccessLogServiceServicer):  # type: ignore[misc]  # generated code is untyped
    """`on_end` is called with the id of each request that has ended."""

    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end
        self._streams: set[asyncio.Task[object]] = set()

    async def StreamAccessLogs(
        self, messages: AsyncIterator[als_pb2.StreamAccessLogsMessage], _: object
    ) -> als_pb2.StreamAccessLogsResponse:
        """One gRPC stream per Envoy worker, for as long as both live."""
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            async for message in messages:
                for entry in message.http_logs.log_entry:
                    self._on_end(entry.request.request_id)
        finally:
            self._streams.discard(task)
        return als_pb2.StreamAccessLogsResponse()

    def close(self) -> None:
        """End the streams, which Envoy never would."""
        for task in self._streams:
            task.cancel()
