"""Each attack is refused in the one right way, neighbours notice nothing, no log has what it should not have."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from e2e.attacks.api import OWN
from e2e.attacks.kinds import KINDS
from e2e.attacks.page import count
from e2e.attacks.siege import CANARY, GREEDY, MALLORY, STRANGER, Outcome, Siege
from e2e.engines import POOL, restarts
from e2e.fleet import DEMO, NAMESPACE
from e2e.reliability.records import Record, write_record


@dataclass
class Tally:
    """What came of the attacks so far, when they began, and how often engines had restarted by then."""

    restarts: dict[str, int]
    began: float = field(default_factory=time.monotonic)
    found: dict[str, list[Outcome]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def tally(siege: Siege) -> Tally:
    return Tally(restarts(siege.fleet))


@pytest.mark.parametrize("kind", KINDS)
def test_refused(siege: Siege, tally: Tally, kind: str) -> None:
    tally.found[kind] = list(KINDS[kind](siege))
    wrong = [each for each in tally.found[kind] if each.answer != each.wanted]
    assert not wrong, "\n".join(map(str, wrong))
    assert tally.found[kind]


def test_nobody_noticed_and_nothing_was_written_down(siege: Siege, tally: Tally) -> None:
    assert set(tally.found) == set(KINDS), "run the whole module"
    record: Record = {"seconds": round(time.monotonic() - tally.began, 1), "neighbour": siege.neighbour.right}
    assert siege.neighbour.right > 2
    assert siege.neighbour.wrong == []
    assert restarts(siege.fleet) == tally.restarts
    texts = written(siege)
    own = (siege.fleet.get("loraadapter", OWN, MALLORY) or {})["metadata"]["uid"]
    assert any(own in text for name, text in texts.items() if name.startswith(POOL)), "the engines' logs were read"
    secrets = {each for each in siege.used if len(each) > 16} | {CANARY}
    assert not {name for name, text in texts.items() for secret in secrets if secret in text}
    record |= {"secrets": len(secrets), "lines": sum(text.count("\n") for text in texts.values())}
    write_record("attacks", record | count(tally.found))


def written(siege: Siege) -> dict[str, str]:
    """All that was logged since the attacks began, and what the API server tells of objects and events."""
    run = siege.fleet.kubectl.run
    since = ("--all-containers", f"--since-time={siege.began}", "--tail=-1")
    asked: dict[str, tuple[str, ...]] = {
        pod["metadata"]["name"]: ("logs", "-n", namespace, pod["metadata"]["name"], *since)
        for namespace in (NAMESPACE, DEMO)
        for pod in siege.fleet.list("pods", namespace)
    }
    for namespace in (NAMESPACE, DEMO, MALLORY, GREEDY, STRANGER):
        listed = "events,loraadapters,tenants,lorapools"
        asked[f"objects of {namespace}"] = ("get", listed, "-n", namespace, "-o", "yaml")
    with ThreadPoolExecutor() as threads:
        return dict(zip(asked, threads.map(lambda words: run(*words), asked.values()), strict=True))
