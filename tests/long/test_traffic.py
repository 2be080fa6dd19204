"""Mixed traffic with adapters coming and going beside it: every answer right, nothing grows."""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import pytest

from e2e.reliability.records import write_record
from tests.conformance.client import BASE, Client, LoadedAdapter, until
from tests.long.usage import Usage, look
from tests.support.engine_process import Engine, running_engine, wait_ready
from tests.support.tiny_model import AdapterRecipe, make_adapter, make_model

SECONDS = float(os.environ.get("LORAFLEET_TRAFFIC_SECONDS", "3600"))
LOOKS = 12
CLIENTS = 6
STEADY, CHURNING = 4, 8
PROMPTS = ("Once upon a time", "The", "A ship in the harbour, and then another one", "12345 67", "Go on. " * 60)
TOKENS = 24
PATIENCE = 600.0
"""What a load or an unload may take: a version goes once its last long request has ended, and a machine may be busy."""
MARGIN = 1e-3
GROWTH_BYTES = 48 << 20
"""What allocators may wobble by from the first quarter to the end of an hour."""


@dataclass(slots=True)
class Answers:
    """What each adapter answers alone, and what came under traffic."""

    right: dict[tuple[str, str], dict[str, object]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """An engine of its own whose memory does not hold all adapters at once beside long sequences."""
    make_model(tmp_path / "volumes" / "models" / "tiny")
    for seed in range(STEADY + CHURNING):
        make_adapter(tmp_path / f"volumes/models/adapter-{seed}", AdapterRecipe(seed, rank=2 + 3 * seed))
    with running_engine(tmp_path, "pvc://models/tiny", tls=True) as engine, Client(engine, PATIENCE) as opened:
        wait_ready(engine)
        yield opened


def ask(client: Client, version: str, prompt: str) -> dict[str, object]:
    """One plain completion with the log probabilities that the margin rule needs."""
    choice: dict[str, object] = client.complete(version, prompt, max_tokens=TOKENS, logprobs=2)["choices"][0]
    return choice


def same(right: dict[str, object], text: str) -> bool:
    """Equal up to the first token whose two best differ by less than the margin: batches add in another order."""
    logprobs = right["logprobs"]
    assert isinstance(logprobs, dict)
    certain = ""
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        best = sorted(top.values(), reverse=True)
        if len(best) > 1 and best[0] - best[1] < MARGIN:
            return text.startswith(certain)
        certain += token
    return text == right["text"]


def is_steady(name: str) -> bool:
    """Whether what is asked for is there all the time."""
    return name == BASE or int(name.rsplit("-", 1)[1]) < STEADY


class Asker:
    """One client's turns; `uids` maps an adapter's name to the version that is loaded now."""

    def __init__(self, engine: Engine, answers: Answers, loaded: dict[str, LoadedAdapter], seed: int) -> None:
        self._engine, self._answers, self._loaded = engine, answers, loaded
        self._dice = random.Random(seed)

    def run(self, stop: threading.Event) -> None:
        """Take turns until told to stop."""
        kinds: list[Callable[[Client, str, str, str], None]] = [
            self._plain,
            self._plain,
            self._stream,
            self._leave,
            self._mistake,
        ]
        with Client(self._engine) as client:
            while not stop.is_set():
                name = self._dice.choice([BASE, *list(self._loaded)])
                version = self._loaded[name].key if name in self._loaded else BASE
                self._dice.choice(kinds)(client, name, version, self._dice.choice(PROMPTS))

    def _plain(self, client: Client, name: str, version: str, prompt: str) -> None:
        body = {"model": "m", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        response = client.post("/v1/completions", version, body)
        if response.status_code == 200:
            self._judge("plain", name, prompt, response.json()["choices"][0]["text"])
        else:
            self._refused(name, response)

    def _stream(self, client: Client, name: str, version: str, prompt: str) -> None:
        body = {"model": "m", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        try:
            with client.streaming("/v1/completions", version, body) as events:
                text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
        except AssertionError:
            self._answers.counts["refused"] += 1
            if is_steady(name):
                self._answers.wrong.append(f"a stream of {name} was refused")
            return
        self._judge("streams", name, prompt, text)

    def _leave(self, client: Client, name: str, version: str, prompt: str) -> None:
        body = client.long_body(self._dice.choice([200, 2000])) | {"prompt": prompt}
        try:
            with client.streaming("/v1/completions", version, body) as events:
                for _ in range(self._dice.choice([1, 5, 20])):
                    next(events)
        except (AssertionError, StopIteration):
            pass
        self._answers.counts["clients that left"] += 1

    def _mistake(self, client: Client, name: str, version: str, prompt: str) -> None:
        body = self._dice.choice([b"{", {"prompt": prompt, "max_tokens": -1}, {"prompt": [1 << 40]}, b"[]"])
        response = client.post("/v1/completions", version, body)
        if response.status_code // 100 != 4 and not response.headers.get("x-lorafleet-retry"):
            self._answers.wrong.append(f"{body!r} was answered with {response.status_code}")
        self._answers.counts["mistakes refused"] += 1

    def _judge(self, kind: str, name: str, prompt: str, text: str) -> None:
        if same(self._answers.right[name, prompt], text):
            self._answers.counts[f"right {kind}"] += 1
        else:
            self._answers.wrong.append(f"{name} answered {text!r}")

    def _refused(self, name: str, response: httpx.Response) -> None:
        """Only a version that is coming or going may say so, and must say that another replica may be asked."""
        if is_steady(name) or not response.headers.get("x-lorafleet-retry"):
            self._answers.wrong.append(f"{name} was refused: {response.status_code} {response.text}")
        self._answers.counts["refused"] += 1


def churn(engine: Engine, loaded: dict[str, LoadedAdapter], counts: Counter[str], stop: threading.Event) -> None:
    """Load and unload what churns, under new uids, and let a foreign source fail now and then."""
    dice, number = random.Random(0), 0
    with Client(engine, patience=PATIENCE) as client:
        while not stop.wait(0.2):
            name = f"adapter-{dice.randrange(STEADY, STEADY + CHURNING)}"
            if (gone := loaded.pop(name, None)) is not None:
                assert client.delete(gone.uid, gone.digest).status_code == 204
                counts["unloads"] += 1
            else:
                number += 1
                loaded[name] = client.bring(f"{name}-{number}", f"pvc://models/{name}")
                counts["loads"] += 1
            if number % 10 == 0:
                assert client.inspect(f"absent-{number}", "pvc://models/absent").status_code >= 400
    for name in [name for name in loaded if not is_steady(name)]:
        gone = loaded.pop(name)
        with Client(engine) as client:
            client.delete(gone.uid, gone.digest)


def learn(client: Client, answers: Answers) -> dict[str, LoadedAdapter]:
    """Ask each adapter alone; afterwards only the steady ones are loaded."""
    answers.right |= {(BASE, prompt): ask(client, BASE, prompt) for prompt in PROMPTS}
    steady = {}
    for number in range(STEADY + CHURNING):
        name = f"adapter-{number}"
        loaded = client.bring(name, f"pvc://models/{name}")
        answers.right |= {(name, prompt): ask(client, loaded.key, prompt) for prompt in PROMPTS}
        if number < STEADY:
            steady[name] = loaded
        else:
            client.delete(loaded.uid, loaded.digest)
    return steady


def test_an_hour_of_mixed_traffic(client: Client) -> None:
    answers = Answers()
    loaded = learn(client, answers)
    before, stop = look(client), threading.Event()
    askers = [Asker(client.engine, answers, loaded, seed) for seed in range(CLIENTS)]
    threads = [threading.Thread(target=asker.run, args=(stop,)) for asker in askers]
    threads.append(threading.Thread(target=churn, args=(client.engine, loaded, answers.counts, stop)))
    began, looks = time.monotonic(), list[Usage]()
    for thread in threads:
        thread.start()
    try:
        for number in range(LOOKS):
            time.sleep(max(0.0, began + SECONDS * (number + 1) / LOOKS - time.monotonic()))
            looks.append(look(client))
            assert all(thread.is_alive() for thread in threads), "a client or the churn has ended"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    until(client.running, lambda count: count == 0)
    after = look(client)
    write_record(
        "traffic",
        {
            "settings": {
                "clients": CLIENTS,
                "adapters": STEADY + CHURNING,
                "model": "tiny",
                "device": "cpu",
                "tls": True,
            },
            "seconds": round(time.monotonic() - began, 1),
            "counts": dict(sorted(answers.counts.items())) | {"wrong": len(answers.wrong)},
            "looks": [asdict(each) for each in looks],
        },
    )
    assert not answers.wrong, answers.wrong[:10]
    assert all(answers.counts[kind] for kind in ("right plain", "right streams", "loads", "unloads"))
    assert after.adapters_used == before.adapters_used
    assert all(count <= before.files[name] for name, count in after.files.items()), after.files
    grown = {name: looks[-1].memory[name] - looks[LOOKS // 4].memory[name] for name in after.memory}
    assert max(grown.values()) <= GROWTH_BYTES, grown
