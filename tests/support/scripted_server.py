"""An HTTP server whose every answer a test writes down: for protocols and for servers that misbehave."""

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """`cut`: the connection ends after so many bytes of the body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None


@dataclass(slots=True)
class Scripted:
    """A running server: its address, and what it was asked."""

    url: str
    asked: list[Asked] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """Method and path of all requests."""
        return [f"{each.method} {each.path}" for each in self.asked]


@contextmanager
def serve(script: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Run a server at 127.0.0.1 that answers as `script` says."""
    running = ThreadingHTTPServer(("127.0.0.1", 0), _handler(script, lambda: scripted))
    running.daemon_threads = True
    if tls is not None:
        running.socket = tls.wrap_socket(running.socket, server_side=True, do_handshake_on_connect=False)
    scripted = Scripted(f"{'https' if tls else 'http'}://127.0.0.1:{running.server_port}")
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield scripted
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def _handler(script: Callable[[Asked], Answer], server: Callable[[], Scripted]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            asked = Asked(self.command, self.path, {key.lower(): value for key, value in self.headers.items()})
            server().asked.append(asked)
            answer = script(asked)
            self.send_response(answer.status)
            self.send_header("content-length", str(len(answer.body)))
            for key, value in answer.headers.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body[: answer.cut])

        do_GET = do_HEAD = _answer

        def handle(self) -> None:
            try:
                super().handle()
            except (ssl.SSLError, ConnectionError):
                return  # a client that does not trust us

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
