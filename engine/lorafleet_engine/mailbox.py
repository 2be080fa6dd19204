"""How messages reach the loop and its news leave it: loop.py's end of the pipe to the api process."""

import threading
from multiprocessing.connection import Connection
from typing import Protocol

from lorafleet_engine.messages import FromLoop, ToLoop


class Mailbox(Protocol):
    """The loop's end of its pipe."""

    def receive(self, wait_s: float) -> list[ToLoop]:
        """All messages that are there; waits up to `wait_s` seconds for the first. Raises EOFError once closed."""
        ...

    def send(self, message: FromLoop) -> None:
        """Hand over one message. Raises OSError once closed."""
        ...


class PipeMailbox:
    """A Mailbox over multiprocessing's Connection. Other threads may send, too."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def receive(self, wait_s: float) -> list[ToLoop]:
        """See Mailbox."""
        messages: list[ToLoop] = []
        while self._connection.poll(0 if messages else wait_s):
            messages.append(self._connection.recv())
        return messages

    def send(self, message: FromLoop) -> None:
        """See Mailbox."""
        with self._lock:
            self._connection.send(message)
