"""A store of hostile adapters: `python3 -m e2e.attacks.store URL` in a pod serves `/CASE/FILE`.

Standard library only. `URL` is a good adapter's folder; a case has its files but for one. `/seen` lists what was asked.
"""

import gzip
import json
import re
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat

from tests.engine.support.hostile import HOSTILE

CONFIG, WEIGHTS, INDEX = "adapter_config.json", "adapter_model.safetensors", "adapter_model.safetensors.index.json"
PORT = 8080
MIB = 1 << 20
ASKED_FOR = {CONFIG, "chat_template.jinja", "model.sig", WEIGHTS, INDEX}
"""All that an engine may ever want of a case."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; without a length among the headers its body ends with the connection."""

    pieces: Iterable[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Case = Callable[[str, Mapping[str, bytes]], Reply | None]
"""The answer to a file's name, given a good adapter's files; None: there is none of this name."""
Change = Callable[[bytes], Reply | None]


def slug(name: str) -> str:
    """A case's name as a part of addresses and of objects' names."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def _plain(data: bytes) -> Reply:
    return Reply([data], headers={"content-length": str(len(data))})


def _redirect(target: str, file: str, good: Mapping[str, bytes]) -> Reply:
    return Reply(status=302, headers={"location": target, "content-length": "0"})


def _replaced(changes: Mapping[str, Change], file: str, good: Mapping[str, bytes]) -> Reply | None:
    """A good adapter but for some files."""
    if file in changes:
        return changes[file](good.get(file, b""))
    return _plain(good[file]) if file in good else None


def _case(**changes: Change) -> Case:
    names = {"config": CONFIG, "weights": WEIGHTS, "index": INDEX}
    return partial(_replaced, {names[name]: change for name, change in changes.items()})


def _index(*shards: str) -> Case:
    """Weights in shards of these names."""
    listing = json.dumps({"weight_map": {f"tensor-{number}": shard for number, shard in enumerate(shards)}})
    return _case(weights=lambda data: None, index=lambda data: _plain(listing.encode()))


def _packed(file: str, good: Mapping[str, bytes]) -> Reply | None:
    """Archives and pickles where the weights should be."""
    if file == CONFIG:
        return _plain(good[CONFIG])
    return None if file in ASKED_FOR else _plain(b"PK\x03\x04")


def _bomb() -> Iterator[bytes]:
    """A gibibyte of zeros in a mebibyte of gzip members."""
    return repeat(gzip.compress(bytes(16 * MIB)), 64)


def _endless() -> Iterator[bytes]:
    return repeat(b" " * (1 << 16))


INNER = {
    "the metadata service": "http://169.254.169.254/latest/meta-data",
    "the engine's admin port": "http://127.0.0.1:8002/admin/v1/drain",
    "the API server": "https://kubernetes.default.svc/api",
    "another tenant's files": "http://demo-assets.demo.svc/adapters/support/adapter_config.json",
    "a file of the engine": "file:///etc/passwd",
    "another path": "/trap/adapter_config.json",
}
LED_ASTRAY: dict[str, Case] = {
    **{f"a redirect to {name}": partial(_redirect, target) for name, target in INNER.items()},
    "a shard that climbs": _index("../../../../etc/passwd"),
    "a shard at the root": _index("/etc/passwd"),
    "a shard at another host": _index("http://169.254.169.254/latest/meta-data"),
    "a shard that climbs escaped": _index("%2e%2e%2ftrap%2fadapter_model.safetensors"),
    "a shard with a query": _index("adapter_model.safetensors?of=another&name=.safetensors"),
    "a shard that climbs backwards": _index("..\\..\\trap\\adapter_model.safetensors"),
}
BOMBS: dict[str, Case] = {
    "a gibibyte in gzip": _case(config=lambda data: Reply(_bomb(), headers={"content-encoding": "gzip"})),
    "weights of a gibibyte in gzip": _case(weights=lambda data: Reply(_bomb(), headers={"content-encoding": "gzip"})),
    "gzip that nobody announced": _case(config=lambda data: _plain(b"".join(_bomb()))),
    "weights in gzip that nobody announced": _case(weights=lambda data: _plain(b"".join(_bomb()))),
    "archives and pickles only": _packed,
    "a configuration without end": _case(config=lambda data: Reply(_endless())),
    "weights of a terabyte": _case(weights=lambda data: Reply([data], headers={"content-length": str(1 << 40)})),
    "a configuration nested deeply": _case(config=lambda data: _plain(b"[" * 1_000_000)),
    "a hundred thousand shards": _index(*(f"shard-{number}.safetensors" for number in range(100_000))),
}
HEADERS: dict[str, Case] = {
    name: _case(weights=lambda data, spoil=spoil: _plain(spoil(data)))  # type: ignore[misc]
    for name, spoil in HOSTILE.items()
}
CASES = {slug(name): case for name, case in (LED_ASTRAY | BOMBS | HEADERS).items()}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    good: Mapping[str, bytes]
    seen: list[str]

    def do_GET(self) -> None:
        case, _, file = self.path.strip("/").partition("/")
        if case == "seen":
            self._send(_plain(json.dumps(self.seen).encode()))
            return
        self.seen.append(self.path)
        answer = CASES[case](file, self.good) if case in CASES else None
        self._send(answer or Reply(status=404, headers={"content-length": "0"}))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            for piece in reply.pieces:
                self.wfile.write(piece)
        except OSError:  # it has had enough
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody reads it."""


def main(good: str) -> None:
    """Serve for ever."""
    Handler.good = {name: urllib.request.urlopen(f"{good}/{name}").read() for name in (CONFIG, WEIGHTS)}
    Handler.seen = []
    ThreadingHTTPServer(("", PORT), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
