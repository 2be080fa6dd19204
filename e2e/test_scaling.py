"""Sizes: a set grows under load and shrinks again, and follows its owner's word, without a failed request."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import openai
import pytest

from e2e.client import Client
from e2e.engines import POOL, ready_replicas
from e2e.fleet import Fleet
from e2e.waiting import wait_until

pytestmark = pytest.mark.long

THREADS = 24
TOKENS = 4
LIGHT_SECONDS = 45.0
"""Long enough for the operator to learn how quick a step can be, so that it knows slow ones."""
MODELS = ("pirate", "shout", "smollm2-135m")


@dataclass
class Seen:
    """What clients got."""

    answers: int = 0
    failures: list[str] = field(default_factory=list)


@contextmanager
def traffic(client: Client, threads: int, pause: float = 0.0) -> Iterator[Seen]:
    """Short requests, one after another in each thread with a pause, while the block runs. Nobody asks twice."""
    seen, stop, lock = Seen(), threading.Event(), threading.Lock()

    def ask(number: int) -> None:
        api = openai.OpenAI(base_url=f"{client.address}/v1", api_key=client.key, max_retries=0, timeout=120)
        message = {"role": "user", "content": f"What is snow, in {number} words?"}
        with api:
            while not stop.is_set():
                try:
                    api.chat.completions.create(
                        model=MODELS[number % len(MODELS)],
                        messages=[message],  # type: ignore[list-item]  # a plain user's message
                        max_tokens=TOKENS,
                    )
                except openai.APIError as error:
                    with lock:
                        seen.failures.append(repr(error))
                else:
                    with lock:
                        seen.answers += 1
                stop.wait(pause)

    running = [threading.Thread(target=ask, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in running:
            thread.join()


@pytest.fixture
def sized(fleet: Fleet, acme: Client) -> Iterator[Fleet]:
    """The pool as the quickstart has it, and again afterwards."""
    try:
        yield fleet
    finally:
        back = {"min": 2, "max": None, "redundancy": None, "mode": None, "desired": None, "scaleDownAfter": None}
        fleet.patch("lorapool", POOL, {"replicas": back})
        wait_until(lambda: len(ready_replicas(fleet)) == 2, seconds=180, what="two replicas again")


def desired(fleet: Fleet) -> tuple[int, str]:
    """How many replicas the shared set should have by the pool's status, and why."""
    pool = fleet.get("lorapool", POOL)
    [shared] = [each for each in (pool or {})["status"]["sets"] if each["name"] == "shared"]
    return int(shared["desired"]), str(shared.get("message", ""))


def test_a_set_grows_under_load_and_shrinks_again_without_a_failed_request(sized: Fleet, acme: Client) -> None:
    sized.patch("lorapool", POOL, {"replicas": {"min": 2, "max": 3, "redundancy": 0}})
    with traffic(acme, 1):
        time.sleep(LIGHT_SECONDS)
    with traffic(acme, THREADS) as seen:
        wait_until(lambda: desired(sized)[0] == 3, seconds=150, what="the load asks for a third replica")
        assert "each" in desired(sized)[1], "the status has the figures"
        wait_until(lambda: len(ready_replicas(sized)) == 3, seconds=180, what="the third is ready")
    assert seen.answers > 0
    assert not seen.failures
    sized.patch("lorapool", POOL, {"replicas": {"scaleDownAfter": "5s"}})
    with traffic(acme, 1, pause=3.0) as seen:
        wait_until(lambda: desired(sized)[0] == 2, seconds=240, what="two are enough")
        wait_until(lambda: len(ready_replicas(sized)) == 2, seconds=120, what="the third has gone")
    assert not seen.failures
    capacity = (sized.get("lorapool", POOL) or {})["status"]["capacity"]
    assert capacity["source"] in ("Assumed", "Measured")
    assert float(capacity["value"]) > 0


def test_an_external_pool_follows_kubectl_scale_without_a_failed_request(sized: Fleet, acme: Client) -> None:
    sized.patch("lorapool", POOL, {"replicas": {"min": 1, "max": 3, "mode": "External", "desired": 2}})
    with traffic(acme, 2, pause=0.5) as seen:
        for size in (3, 2):
            sized.kubectl.run("scale", "lorapool", POOL, "-n", "demo", f"--replicas={size}")
            wait_until(lambda size=size: len(ready_replicas(sized)) == size, seconds=240, what=f"{size} replicas")
            wait_until(lambda size=size: desired(sized)[0] == size, seconds=30, what="the status says so")
            assert desired(sized)[1].startswith(f"replicas.desired {size} (mode External)")
    assert seen.answers > 0
    assert not seen.failures
