"""Clients that never come to an end: opened when the attacks begin, looked at when these are over."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException

from e2e.attacks.wire import Place, read_reply
from tests.gateway.doubles.hostile_http import LINE, make_head

CONNECTIONS = 16
"""Of each sort."""
DRIBBLE_SECONDS = 5.0
"""How long a byte a second follows; less than the gateway gives for headers, whose answer a late byte would destroy."""
PATIENCE = 90.0
"""For the gateway to end them: it gives 10 s for headers and 60 s for a request."""


@dataclass(frozen=True, slots=True)
class SlowClients:
    """Open connections by what they began."""

    connections: list[tuple[str, socket.socket]]

    @classmethod
    @contextmanager
    def opened(cls, place: Place, key: str) -> Iterator["SlowClients"]:
        """Begin requests and go on a byte a second for a while."""
        head = LINE + make_head(key)
        begun = {
            "in the request line": b"POST /v1/chat",
            "in the headers": head + b"x-slow: ",
            "in the body": head + b"content-length: 1000\r\n\r\n{",
        }
        with ExitStack() as exits:
            made = []
            for name, start in begun.items():
                for _ in range(CONNECTIONS):
                    connection = exits.enter_context(socket.create_connection(place, PATIENCE))
                    connection.sendall(start)
                    made.append((name, connection))
            stop = threading.Event()
            thread = threading.Thread(target=_dribble, args=([each for _, each in made], stop))
            thread.start()
            try:
                yield cls(made)
            finally:
                stop.set()
                thread.join()

    def answers(self) -> Iterator[tuple[str, str]]:
        """What each got in the end."""
        for name, connection in self.connections:
            try:
                yield name, str(read_reply(connection))
            except (OSError, HTTPException) as error:
                yield name, type(error).__name__


def _dribble(connections: list[socket.socket], stop: threading.Event) -> None:
    end = time.monotonic() + DRIBBLE_SECONDS
    while not stop.wait(1.0) and time.monotonic() < end:
        for connection in connections:
            try:
                connection.send(b"x")
            except OSError:
                continue  # ended before its time: its answer will say so
