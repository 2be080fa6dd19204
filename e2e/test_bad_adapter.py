"""Adapters that can't work are Stalled with a message that says why; nobody else notices."""

from functools import partial

import pytest

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client
from e2e.engines import restarts
from e2e.fleet import Fleet, Object, adapter, condition, holds
from e2e.waiting import wait_until

FAULTS = [
    ("wrong-rank", "rank 32"),
    ("wrong-shape", "shape"),
    ("wrong-base", "llama-9000b"),
    ("pickle", "safetensors"),
    ("truncated", "safetensor"),
    ("missing", "adapter_config.json"),
]


def is_stalled(fleet: Fleet, fault: str) -> bool:
    return holds(fleet.get("loraadapter", f"bad-{fault}"), "Stalled")


@pytest.fixture(scope="module")
def verdicts(fleet: Fleet, acme: Client) -> dict[str, Object]:
    """All bad adapters at once, with what the operator says of each; meanwhile the others serve and no engine falls."""
    names = [name for name, _ in FAULTS]
    before = restarts(fleet)
    fleet.apply(*[adapter(f"bad-{name}", "broken", source=name) for name in names])
    try:
        found: dict[str, Object] = {}
        for name in names:
            wait_until(partial(is_stalled, fleet, name), seconds=60, what=f"{name} is Stalled")
            found[name] = fleet.get("loraadapter", f"bad-{name}") or {}
        assert style_of(acme.ask("pirate", UNSEEN[0])) == "pirate"
        assert holds(fleet.get("loraadapter", "pirate"), "Ready")
        assert holds(fleet.get("lorapool", "smol"), "Ready")
        assert restarts(fleet) == before
        return found
    finally:
        for name in names:
            fleet.delete("loraadapter", f"bad-{name}")


@pytest.mark.parametrize(("fault", "word"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_the_verdict_names_the_fault(verdicts: dict[str, Object], fault: str, word: str) -> None:
    stalled = condition(verdicts[fault], "Stalled")
    assert word.lower() in stalled["message"].lower(), stalled
    assert condition(verdicts[fault], "Ready")["status"] == "False"
