"""Speaks an engine's three ports as the gateway and the operator do. Used by the conformance suite only."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from lorafleet_contracts.admin import PortName
from tests.support.engine_process import Engine, get_state

BASE = "base"
WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """One version on the engine."""

    uid: str
    digest: str
    uri: str
    bytes: int

    @property
    def key(self) -> str:
        """What the gateway's header says."""
        return f"{self.uid}@{self.digest}"


class Client:
    """A context manager over keep-alive connections. What the admin port begins may take `patience` seconds."""

    def __init__(self, engine: Engine, patience: float = WAIT_SECONDS) -> None:
        self.engine = engine
        self._patience = patience
        self._http = httpx.Client(timeout=120, verify=engine.trust)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    # --- serving

    def post(self, path: str, version: str | None, body: Any, **headers: str) -> httpx.Response:
        """A serving request; `body` bytes are sent as they are."""
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        return self._http.post(
            f"{self.engine.serving}{path}",
            content=content,
            headers=self.engine.headers(PortName.SERVING, version, **headers),
        )

    def chat(self, version: str, text: str = "Tell me about the sea.", **fields: Any) -> dict[str, Any]:
        """A plain chat answer."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 12, "temperature": 0}
        return self._success(self.post("/v1/chat/completions", version, body | fields))

    def complete(self, version: str, prompt: Any = "Once upon a time", **fields: Any) -> dict[str, Any]:
        """A plain completion."""
        body = {"model": "m", "prompt": prompt, "max_tokens": 12, "temperature": 0}
        return self._success(self.post("/v1/completions", version, body | fields))

    @contextmanager
    def streaming(self, path: str, version: str, body: dict[str, Any]) -> Iterator[Iterator[dict[str, Any]]]:
        """The chunks of a streamed answer; the last event must be [DONE]."""
        with self._http.stream(
            "POST",
            f"{self.engine.serving}{path}",
            json=body | {"stream": True},
            headers=self.engine.headers(PortName.SERVING, version),
        ) as response:
            assert response.status_code == 200, response.read()
            yield _events(response)

    def long_body(self, tokens: int = 8_000) -> dict[str, Any]:
        """A completion that goes on until it is stopped."""
        return {
            "model": "m",
            "prompt": "Go on",
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0.8,
            "seed": 1,
        }

    # --- admin

    def admin(self, method: str, path: str, body: Any = None, port: PortName = PortName.ADMIN) -> httpx.Response:
        """An admin request with the token of `port`."""
        return self._http.request(
            method, f"{self.engine.admin}/admin/v1{path}", json=body, headers=self.engine.headers(port)
        )

    def inspect(self, uid: str, uri: str, generation: int = 1, digest: str | None = None) -> httpx.Response:
        """Ask until the answer is no longer 202."""
        body = {"generation": generation, "source": {"uri": uri}} | ({"digest": digest} if digest else {})
        return until(lambda: self.admin("POST", f"/adapters/{uid}/inspect", body), _settled, self._patience)

    def put(self, uid: str, digest: str, uri: str, tier: str = "gpu", pinned: bool = False) -> httpx.Response:
        """Ask until the answer is no longer 202."""
        return until(lambda: self.put_once(uid, digest, uri, tier=tier, pinned=pinned), _settled, self._patience)

    def put_once(self, uid: str, digest: str, uri: str, **fields: Any) -> httpx.Response:
        """Ask once."""
        body = {"source": {"uri": uri}, "display": {"namespace": "team", "name": uid}, **fields}
        return self.admin("PUT", f"/adapters/{uid}/versions/{digest}", body)

    def delete(self, uid: str, digest: str) -> httpx.Response:
        """Ask until it is gone."""
        return until(lambda: self.admin("DELETE", f"/adapters/{uid}/versions/{digest}"), _settled, self._patience)

    def bring(self, uid: str, uri: str) -> LoadedAdapter:
        """Inspect and load, as the operator does."""
        report = self._success(self.inspect(uid, uri))
        self._success(self.put(uid, report["digest"], uri))
        return LoadedAdapter(uid, report["digest"], uri, report["bytes"])

    # --- state

    def state(self, **query: Any) -> dict[str, Any]:
        """The state port's answer."""
        return get_state(self.engine, **query)

    def running(self) -> float:
        """Requests that the loop itself has, waiting ones too; its report is at most half a second old."""
        text = self._http.get(f"{self.engine.state}/metrics", headers=self.engine.headers(PortName.STATE)).text
        return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith("lorafleet_requests_"))

    def resident_keys(self) -> set[str]:
        """Resident versions."""
        return {f"{v['uid']}@{v['digest']}" for v in self.state()["versions"] if v["phase"] == "resident"}

    def _success(self, response: httpx.Response) -> dict[str, Any]:
        assert response.is_success, response.text
        found: dict[str, Any] = response.json()
        return found


def until(ask: Callable[[], Any], done: Callable[[Any], bool], seconds: float = WAIT_SECONDS) -> Any:
    """Ask again until `done`. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not done(answer := ask()):
        assert time.monotonic() < deadline, f"still {answer} after {seconds} s"
        time.sleep(0.05)
    return answer


def _settled(response: httpx.Response) -> bool:
    return response.status_code != 202


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    last = ""
    for line in response.iter_lines():
        if line.startswith("data: "):
            last = line.removeprefix("data: ")
            if last != "[DONE]":
                yield orjson.loads(last)
    assert last == "[DONE]"
