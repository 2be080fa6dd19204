"""A real Prometheus over a real fleet under traffic: every panel of every dashboard shows something."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

from e2e.assets.styles import UNSEEN
from e2e.client import Client
from e2e.engines import POOL, find_trust
from e2e.fleet import DEMO, NAMESPACE, Fleet, adapter, forwarded
from e2e.prometheus.server import Target, ask, running
from e2e.traffic import repeating
from e2e.waiting import NotInTimeError, wait_until
from lorafleet_contracts.names import LABEL_POOL, EnginePort
from tests.support.queries import panels

pytestmark = pytest.mark.long
QUIET = {
    "fleet: Over their limits A",
    "fleet: Store of the limits A",
    "tenant: Over its limits A",
    "pool: Wait for a cold adapter, p95 A",
    "pool: Evictions A",
    "pool: Prompt tokens found computed A",
}
"""Panels that show nothing while nothing is limited, is waited for, is evicted or begins alike."""
LATE, MISSING = "late", "nobody-made-this"
"""Adapters that come while Prometheus looks: one is loaded, the other is nowhere and so is not Ready."""


@pytest.fixture
def prometheus(fleet: Fleet, acme: Client, tmp_path: Path) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes the quickstart's engines, the gateway and the operator."""
    secret = fleet.get("secret", f"{POOL}-tokens")
    assert secret
    token = base64.b64decode(secret["data"]["scrape"]).decode()
    with ExitStack() as stack:
        targets = []
        for pod in fleet.list("pods", selector=f"{LABEL_POOL}={POOL}"):
            name = pod["metadata"]["name"]
            address = stack.enter_context(forwarded(fleet.kubectl, f"pod/{name}", EnginePort.STATE, DEMO))
            labels = {"pool": f"{DEMO}/{POOL}", "replica": name}
            targets.append(Target(address, labels, token, find_trust(fleet, pod)))
        for component, port in (("gateway", 9003), ("operator", 8080)):
            for pod in fleet.list("pods", NAMESPACE, f"app.kubernetes.io/component={component}"):
                name = pod["metadata"]["name"]
                address = stack.enter_context(forwarded(fleet.kubectl, f"pod/{name}", port, NAMESPACE))
                targets.append(Target(address, {"pod": name}))
        yield stack.enter_context(running(tmp_path, targets))


@pytest.fixture
def comers(fleet: Fleet, prometheus: httpx.Client) -> Iterator[None]:
    """Both adapters, once every engine was scraped without them."""
    engines = fleet.list("pods", selector=f"{LABEL_POOL}={POOL}")
    scraped = "count by (replica) (lorafleet_load_seconds_count)"
    wait_until(lambda: len(ask(prometheus, scraped)) == len(engines), seconds=60, what="a first scrape of every engine")
    fleet.apply(adapter(LATE, source="robot"), adapter(MISSING))
    yield
    for name in (LATE, MISSING):
        fleet.delete("loraadapter", name)


def test_every_panel_shows_something(prometheus: httpx.Client, acme: Client, comers: None) -> None:
    def answered(number: int) -> str:
        return "" if acme.ask("pirate", UNSEEN[number % len(UNSEEN)], tokens=4) else "an empty answer"

    def refused(number: int) -> str:
        with pytest.raises(openai.NotFoundError):
            acme.ask("nobody-s", "?", tokens=1)
        return ""

    empty = [each for each in panels() if each.where not in QUIET]

    def all_show() -> bool:
        empty[:] = [each for each in empty if not ask(prometheus, each.expression)]
        return not empty

    with repeating([answered, refused], pause=0.5) as seen:
        try:
            wait_until(all_show, seconds=240, what="every panel's query gives data", pause=5)
        except NotInTimeError as error:
            raise AssertionError(f"these panels show nothing: {[each.where for each in empty]}") from error
    assert not seen.wrong
