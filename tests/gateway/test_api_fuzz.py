"""The tenant API fuzzed from its OpenAPI document: a real engine behind the real gateway must neither break nor lie.

Every answer must have a documented status, type and shape, whatever was sent; the engine must be the same process, with
nothing left running, at the end. A few cases run with the other tests, many in `make test-long`.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from e2e.reliability.records import write_record
from lorafleet_contracts.admin import PortName
from tests.conformance.client import Client
from tests.gateway.doubles.engine import EngineDouble
from tests.gateway.doubles.stack import (
    SERVING_TOKEN,
    STATE_TOKEN,
    Stack,
    fill,
    make_key,
    put_adapter,
    run_gateway,
    until,
)
from tests.support.cases import cases
from tests.support.engine_process import Engine, get_state, running_engine, wait_ready
from tests.support.tiny_model import AdapterRecipe, make_adapter, make_model

pytestmark = pytest.mark.envoy

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
NAMES = ("pirate", "smollm2")
MOST_TOKENS, MOST_CHOICES = 8, 4
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
schema = schemathesis.openapi.from_dict(json.loads(DOCUMENT.read_text()))


def tame(body: Any) -> Any:
    """Most cases name a model that exists and ask for answers that a CPU gives at once."""
    if not isinstance(body, dict):
        return body
    changed = dict(body)
    name = changed.get("model")
    if isinstance(name, str) and len(name) % 8:
        changed["model"] = NAMES[len(name) % len(NAMES)]
    for limited, most in (("max_tokens", MOST_TOKENS), ("max_completion_tokens", MOST_TOKENS), ("n", MOST_CHOICES)):
        value = changed.get(limited)
        if isinstance(value, int) and not isinstance(value, bool) and value > most:
            changed[limited] = 1 + value % most
    if changed.get("max_tokens") is None and changed.get("max_completion_tokens") is None:
        changed["max_tokens"] = MOST_TOKENS
    return changed


@dataclass(frozen=True, slots=True)
class Fleet:
    """The gateway's address, and the engine behind it."""

    url: str
    engine: Engine
    statuses: Counter[str] = field(default_factory=Counter)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fuzz")
    models = folder / "volumes" / "models"
    make_model(models / "tiny")
    make_adapter(models / "pirate", AdapterRecipe(1, rank=4))
    with running_engine(folder, "pvc://models/tiny") as engine:
        wait_ready(engine)
        for port, token in ((PortName.SERVING, SERVING_TOKEN), (PortName.STATE, STATE_TOKEN)):
            with (folder / "tokens" / port.value).open("a") as file:
                file.write(token + "\n")
        with Client(engine) as client:
            digest = client.bring("uid-pirate", "pvc://models/pirate").digest
        with running_in_thread(gateway(folder, engine, digest)) as stack:
            fleet = Fleet(stack.url, engine)
            started = time.monotonic()
            yield fleet
            seconds = time.monotonic() - started
    if not request.session.testsfailed:
        write_record("api-fuzz", {"requests": fleet.statuses.total(), "statuses": fleet.statuses, "seconds": seconds})


@asynccontextmanager
async def gateway(folder: Path, engine: Engine, digest: str) -> AsyncIterator[Stack]:
    """A gateway before the real engine."""
    ports = (int(url.rpartition(":")[2]) for url in (engine.serving, engine.state))
    replica = EngineDouble("real", STATE_TOKEN, *ports)

    def fill_in(stack: Stack) -> None:
        fill(stack)
        put_adapter(stack, "acme", "pirate", digest)

    async with run_gateway(folder / "gateway", [replica], fill_in) as stack:
        await until(lambda: stack.knows(1))
        yield stack


@contextmanager
def running_in_thread(context: Any) -> Iterator[Stack]:
    """Enter an asynchronous context in an event loop of its own, which runs on while the tests block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(60)
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def fuzz(case: schemathesis.Case, fleet: Fleet) -> None:
    """Send one case, and hold the answer against the document."""
    headers = {"authorization": f"Bearer {make_key('acme', 't')}"}
    case.body = tame(case.body)
    response = case.call_and_validate(base_url=fleet.url, headers=headers, timeout=30, checks=CHECKS)
    fleet.statuses[str(response.status_code)] += 1
    if response.headers.get("content-type", [""])[0].startswith("text/event-stream"):
        *events, last, rest = response.text.split("\n\n")
        assert (last, rest) == ("data: [DONE]", "")
        for event in events:
            assert json.loads(event.removeprefix("data: "))["object"] in ("chat.completion.chunk", "text_completion")


def rests(fleet: Fleet) -> bool:
    """Whether the engine that was started still answers and has nothing left to do."""
    assert fleet.engine.process is not None
    state = get_state(fleet.engine)
    return fleet.engine.process.poll() is None and state["inFlight"] == state["queue"] == 0


quiet = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@schema.parametrize()
@settings(max_examples=20, derandomize=True, **quiet)
def test_some_cases(case: schemathesis.Case, fleet: Fleet) -> None:
    fuzz(case, fleet)


@pytest.mark.long
@schema.parametrize()
@settings(max_examples=cases(1000, one_in=50), **quiet)
def test_many_cases(case: schemathesis.Case, fleet: Fleet) -> None:
    fuzz(case, fleet)


def test_nothing_is_left_behind(fleet: Fleet) -> None:
    body = {"model": "pirate", "prompt": "Once", "max_tokens": 4}
    answer = httpx.post(
        f"{fleet.url}/v1/completions", json=body, headers={"authorization": f"Bearer {make_key('acme', 't')}"}
    )
    assert answer.status_code == 200
    assert rests(fleet)
