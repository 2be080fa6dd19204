"""A process that reads many streamed answers at once: `python -m lorafleet_engine.bench.stream_client`, started by
bench/server_child.py.

One line of JSON on standard input says what to ask ({"port", "headers", "bodies": one list of bodies a stream, sent one
after another}). It connects, writes "ready", begins at the next line and writes one line of JSON when all answers are
complete. It does as little as it can, so that it is not what is measured.
"""

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field

READ = 1 << 18
END = b"data: [DONE]\n\n"


@dataclass(slots=True)
class _Stream:
    """One connection and the requests that are still to be sent on it."""

    sock: socket.socket
    requests: list[bytes]
    received: bytearray = field(default_factory=bytearray)


def main() -> int:
    """Run the streams; returns the exit status."""
    asked = json.loads(sys.stdin.readline())
    head = "".join(f"{name}: {value}\r\n" for name, value in asked["headers"].items())
    streams = []
    for bodies in asked["bodies"]:
        sock = socket.create_connection(("127.0.0.1", asked["port"]))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        streams.append(_Stream(sock, [_request(head, json.dumps(body).encode()) for body in reversed(bodies)]))
    print("ready", flush=True)
    sys.stdin.readline()
    answers = _read_all(streams)
    ended = time.monotonic()
    tokens, events = 0, 0
    for answer in answers:
        count, more = _judge(answer)
        tokens, events = tokens + count, events + more
    print(json.dumps({"ended": ended, "answers": len(answers), "tokens": tokens, "events": events}), flush=True)
    return 0


def _request(head: str, body: bytes) -> bytes:
    first = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {len(body)}\r\n\r\n"
    return first.encode() + body


def _read_all(streams: list[_Stream]) -> list[bytes]:
    """Send and read until every stream has all its answers; the answers as they came."""
    selector, answers = selectors.DefaultSelector(), []
    for stream in streams:
        stream.sock.sendall(stream.requests.pop())
        selector.register(stream.sock, selectors.EVENT_READ, stream)
    open_streams = len(streams)
    while open_streams:
        for key, _ in selector.select():
            one: _Stream = key.data
            read = one.sock.recv(READ)
            one.received += read
            if END in one.received[-len(read) - len(END) :] or not read:
                answers.append(bytes(one.received))
                one.received.clear()
                if read and one.requests:
                    one.sock.sendall(one.requests.pop())
                else:
                    selector.unregister(one.sock)
                    open_streams -= 1
    return answers


def _judge(answer: bytes) -> tuple[int, int]:
    """Generated tokens by the usage that the server states, and events; 0 tokens for an answer that is not complete."""
    lines = [line for line in answer.split(b"\n") if line.startswith(b"data: {")]
    if END not in answer or not lines:
        print(answer[:600].decode(errors="replace"), file=sys.stderr)
        return 0, 0
    usage = json.loads(lines[-1][len(b"data: ") :]).get("usage") or {}
    return int(usage.get("completion_tokens", 0)), len(lines)


if __name__ == "__main__":
    sys.exit(main())
