"""Adapters that come and go a thousand times leave nothing behind: no bytes, no file handles, no memory."""

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from e2e.reliability.records import write_record
from tests.conformance.client import Client
from tests.long.usage import Usage, look
from tests.support.engine_process import running_engine, wait_ready
from tests.support.tiny_model import AdapterRecipe, make_adapter, make_model

CYCLES = int(os.environ.get("LORAFLEET_CYCLES", "1000"))
ADAPTERS = 8
LOOKS = 10
GROWTH_BYTES = 12 << 20
"""What the allocators of three processes may still wobble by after the first tenth; a leak of 15 KB a cycle shows."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """An engine of its own that has never held an adapter."""
    make_model(tmp_path / "volumes" / "models" / "tiny")
    for seed in range(ADAPTERS):
        make_adapter(tmp_path / f"volumes/models/adapter-{seed}", AdapterRecipe(seed, rank=4 + 3 * seed))
    with running_engine(tmp_path, "pvc://models/tiny", tls=True) as engine, Client(engine) as opened:
        wait_ready(engine)
        yield opened


def cycle(client: Client, number: int, answers: dict[int, str]) -> None:
    """A new object's adapter is loaded, answers as it always did, and goes."""
    seed = number % ADAPTERS
    loaded = client.bring(f"cycle-{number}", f"pvc://models/adapter-{seed}")
    text = client.complete(loaded.key)["choices"][0]["text"]
    assert answers.setdefault(seed, text) == text
    assert client.delete(loaded.uid, loaded.digest).status_code == 204


def test_nothing_grows(client: Client) -> None:
    began, looks, answers = time.monotonic(), list[Usage](), dict[int, str]()
    for number in range(CYCLES):
        cycle(client, number, answers)
        if (number + 1) % (CYCLES // LOOKS) == 0:
            looks.append(look(client))
    first, last = looks[0], looks[-1]
    write_record(
        "cycles",
        {
            "settings": {"cycles": CYCLES, "adapters": ADAPTERS, "model": "tiny", "device": "cpu", "tls": True},
            "seconds": round(time.monotonic() - began, 1),
            "looks": [asdict(each) for each in looks],
        },
    )
    assert len(set(answers.values())) == ADAPTERS
    assert client.state()["versions"] == []
    assert {each.adapters_used for each in looks} == {0}
    assert last.files == first.files
    assert (last.disk_bytes, last.host_bytes) == (first.disk_bytes, first.host_bytes)
    grown = {name: last.memory[name] - first.memory[name] for name in first.memory}
    assert max(grown.values()) <= GROWTH_BYTES, grown
