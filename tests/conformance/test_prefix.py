"""An engine with its prefix cache on says in the usage how much of a prompt it had already computed, and for whom."""

from collections.abc import Iterator
from typing import Any

import pytest

from lorafleet_contracts.names import HEADER_TENANT
from tests.conformance.client import BASE, Client
from tests.support.engine_process import Engine, running_engine, wait_ready
from tests.support.tiny_model import make_model

PROMPT = "The sea is wide and the ship is small, but the crew knows every star by its name. " * 2


@pytest.fixture(scope="module")
def caching(tmp_path_factory: pytest.TempPathFactory, local: Engine) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("prefix")
    make_model(folder / "volumes" / "models" / "tiny")
    with running_engine(folder, "pvc://models/tiny", PREFIX_CACHE="tenant") as started:
        wait_ready(started)
        with Client(started) as client:
            yield client


def ask(client: Client, tenant: str) -> dict[str, Any]:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    answer: dict[str, Any] = client.post("/v1/completions", BASE, body, **{HEADER_TENANT: tenant}).json()
    return answer


def test_usage_says_what_was_cached(caching: Client) -> None:
    first, second, other = (ask(caching, tenant) for tenant in ("a", "a", "b"))
    assert first["choices"][0]["text"] == second["choices"][0]["text"] == other["choices"][0]["text"]
    usages = [answer["usage"] for answer in (first, second, other)]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached == [0, (usages[1]["prompt_tokens"] - 1) // 16 * 16, 0]
    assert cached[1] > 0
