"""Starts a child process and talks to it in pickled messages, without ever blocking the event loop.

Used by loop_client.py and loader_client.py. The framing is that of multiprocessing's Connection, which the children
use: a signed 32-bit big-endian length (or -1 and an unsigned 64-bit one), then the pickle.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import struct
import sys
from typing import Any, Self

_SHORT = struct.Struct("!i")
_LONG = struct.Struct("!Q")
_LIMIT = 1 << 20
CHILD_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""OpenMP threads that spin while waiting eat up a CPU quota, and starve each other where cores are shared."""


class Child:
    """One running child and the parent's end of its pipe."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, name: str) -> Self:
        """Spawn `python -m lorafleet_engine.child name`. The first message to send is its config."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lorafleet_engine.child", name),
                *(str(theirs.fileno()), str(os.getpid()), logging.getLevelName(logging.root.level)),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env=CHILD_ENVIRONMENT | os.environ,
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=_LIMIT)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """Process id, for logs and fault tests."""
        return self._process.pid

    def send(self, message: object) -> None:
        """Queue a message; never waits. Messages to a dead child are lost, receive() tells."""
        payload = pickle.dumps(message)
        if not self._writer.is_closing():
            self._writer.write(frame_header(len(payload)) + payload)

    async def receive(self) -> Any:
        """The child's next message. Raises EOFError once it is gone."""
        try:
            (size,) = _SHORT.unpack(await self._reader.readexactly(_SHORT.size))
            if size == -1:
                (size,) = _LONG.unpack(await self._reader.readexactly(_LONG.size))
            return pickle.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise EOFError from error

    async def end(self) -> int:
        """Close the pipe, kill the process if it still runs, and return its exit status."""
        self._writer.close()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        return await self._process.wait()


def frame_header(size: int) -> bytes:
    """The bytes that multiprocessing's Connection puts before a payload of `size` bytes."""
    return _SHORT.pack(size) if size <= 0x7FFFFFFF else _SHORT.pack(-1) + _LONG.pack(size)
