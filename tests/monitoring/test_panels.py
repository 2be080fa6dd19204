"""A real Prometheus that scrapes our three programs' metrics: every panel's query gives data."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from e2e.prometheus.server import Target, ask, running
from e2e.waiting import NotInTimeError, wait_until
from lorafleet_engine.server.metrics import Metrics as EngineMetrics
from lorafleet_gateway.shell.metrics import Metrics as GatewayMetrics
from lorafleet_operator.shell.metrics import Metrics as OperatorMetrics
from tests.support.queries import panels
from tests.support.registries import drive_engine, drive_gateway, drive_operator

pytestmark = pytest.mark.prometheus
DRIVEN = {"pool": "demo/pool-0", "adapter": "team/adapter-0", "tenant": "team/tenant-0"}
"""What tests/support/registries.py calls its objects."""


@contextmanager
def exposing(drive: Callable[[], CollectorRegistry]) -> Iterator[str]:
    """The address of a program that is used once more whenever it is scraped."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = generate_latest(drive())
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_every_panel_shows_something(tmp_path: Path) -> None:
    engine, gateway, operator = EngineMetrics(), GatewayMetrics(), OperatorMetrics()
    empty = list(panels(DRIVEN))
    with ExitStack() as stack:
        programs = (
            (lambda: drive_engine(1, engine), {"pool": "demo/pool-0", "replica": "smol-shared-0"}),
            (lambda: drive_gateway(1, gateway), {"pod": "gateway-0"}),
            (lambda: drive_operator(1, operator).registry, {"pod": "operator-0"}),
        )
        targets = [Target(stack.enter_context(exposing(drive)), labels) for drive, labels in programs]
        prometheus = stack.enter_context(running(tmp_path, targets))

        def all_show() -> bool:
            empty[:] = [each for each in empty if not ask(prometheus, each.expression)]
            return not empty

        try:
            wait_until(all_show, seconds=90, what="every panel's query gives data", pause=1)
        except NotInTimeError as error:
            raise AssertionError(f"these panels show nothing: {[each.where for each in empty]}") from error
