"""Hears from Envoy which requests have ended. Envoy calls it on a port of its own, for requests whose end matters only.

Envoy writes an entry once, when the last byte was sent or the client has left (core/envoy_listeners.py says for which).
"""

from collections.abc import Callable

from envoy.service.accesslog.v3 import als_pb2

from lorafleet_gateway.shell.grpc_port import Stream


class AccessLog:
    """`on_end` is called with the id of each request that has ended."""

    def __init__(self, on_end: Callable[[str], None]) -> None:
        self._on_end = on_end

    async def process(self, stream: Stream) -> None:
        """One gRPC stream per Envoy worker, for as long as both live."""
        while (message := await stream.read()) is not None:
            for entry in als_pb2.StreamAccessLogsMessage.FromString(message).http_logs.log_entry:
                self._on_end(entry.request.request_id)
        await stream.write(als_pb2.StreamAccessLogsResponse().SerializeToString())
