"""The frames of HTTP/2, as far as gRPC on loopback needs them: bytes in, frames out, and back.

Used by shell/grpc_port.py. Written here because the libraries for it cost as much as a pick: gRPC's server hands each
message from thread to thread, h2 takes nearly as much time in Python (docs/benchmarks/README.md has the figures).
Headers of requests are not decoded: a port serves one method, and what that must know is in the messages.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME = 1 << 14
"""Payload of a frame in both directions: every peer takes so much, and sends no more unless told that it may."""
DEFAULT_WINDOW = (1 << 16) - 1
LARGEST_WINDOW = (1 << 31) - 1
RESPONSE_HEADERS = b"\x88\x0f\x10\x10application/grpc"
"""`:status: 200` and the content type, without a reference to the peer's table."""
_HEADER = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
_STREAM_BITS = (1 << 31) - 1


class Kind(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8


class Flag(IntEnum):
    """Flags of frames; what 1 means depends on the type."""

    NONE = 0
    ACK = 1
    END_STREAM = 1
    END_HEADERS = 4
    PADDED = 8


class Setting(IntEnum):
    """Settings that are sent or read."""

    INITIAL_WINDOW_SIZE = 4


class Code(IntEnum):
    """Why a stream or connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1


class Frame(NamedTuple):
    """One frame; `kind` may be one that nobody knows, which is to be ignored."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class WireError(ValueError):
    """What arrived is no HTTP/2, or not what was agreed on."""


class FrameBuffer:
    """Cuts what arrives on a server's connection into frames."""

    def __init__(self) -> None:
        self._rest = b""
        self._greeted = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete with `data`. Raises WireError."""
        data = self._rest + data
        at = 0
        if not self._greeted:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise WireError("the peer does not speak HTTP/2")
            if len(data) < len(PREFACE):
                self._rest = data
                return
            self._greeted = True
            at = len(PREFACE)
        while len(data) - at >= _HEADER.size:
            high, low, kind, flags, stream = _HEADER.unpack_from(data, at)
            length = high << 8 | low
            if length > MAX_FRAME:
                raise WireError(f"a frame of {length} bytes")
            end = at + _HEADER.size + length
            if end > len(data):
                break
            yield Frame(kind, flags, stream & _STREAM_BITS, data[at + _HEADER.size : end])
            at = end
        self._rest = data[at:]


def build_frame(kind: Kind, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame; its payload is MAX_FRAME bytes at most."""
    length = len(payload)
    return _HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def build_settings(settings: dict[Setting, int]) -> bytes:
    """What this side asks of the other."""
    return build_frame(Kind.SETTINGS, Flag.NONE, 0, b"".join(_SETTING.pack(*each) for each in settings.items()))


def build_window_update(stream: int, more: int) -> bytes:
    """Let the other side send so many bytes more; stream 0 is the connection."""
    return build_frame(Kind.WINDOW_UPDATE, Flag.NONE, stream, _NUMBER.pack(more))


def build_reset(stream: int) -> bytes:
    """Nothing more of the stream is read."""
    return build_frame(Kind.RST_STREAM, Flag.NONE, stream, _NUMBER.pack(Code.NO_ERROR))


def build_goaway(last_stream: int, code: Code) -> bytes:
    """The connection ends."""
    return build_frame(Kind.GOAWAY, Flag.NONE, 0, _NUMBER.pack(last_stream) + _NUMBER.pack(code))


def build_trailers(stream: int, status: int) -> bytes:
    """The end of a gRPC stream."""
    text = b"%d" % status
    block = b"\x00\x0bgrpc-status" + bytes([len(text)]) + text
    return build_frame(Kind.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, stream, block)


def read_data(frame: Frame) -> bytes:
    """The content of a DATA frame without its padding. Raises WireError."""
    if not frame.flags & Flag.PADDED:
        return frame.payload
    padding = frame.payload[0] if frame.payload else 0
    if padding >= len(frame.payload):
        raise WireError("a frame with more padding than content")
    return frame.payload[1 : len(frame.payload) - padding]


def read_settings(payload: bytes) -> dict[int, int]:
    """What the other side asks for, by number. Raises WireError."""
    if len(payload) % _SETTING.size:
        raise WireError(f"settings of {len(payload)} bytes")
    return dict(_SETTING.iter_unpack(payload))


def read_increment(payload: bytes) -> int:
    """The bytes that the other side takes more. Raises WireError."""
    if len(payload) != _NUMBER.size:
        raise WireError(f"a window update of {len(payload)} bytes")
    increment: int = _NUMBER.unpack(payload)[0] & _STREAM_BITS
    return increment
