"""An engine container killed under traffic: no wrong answer, and all is as before without anybody's help."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client
from e2e.engines import ready_replicas, restarts
from e2e.fleet import DEMO, Fleet, holds
from e2e.waiting import wait_until

KILL_ALL_BUT_INIT = """
import os, signal
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        os.kill(int(name), signal.SIGKILL)
"""


@contextmanager
def traffic(clients: dict[str, Client]) -> Iterator[Counter[str]]:
    """Ask for every adapter again and again; counts `right`, `refused` and `wrong` answers."""
    outcomes: Counter[str] = Counter()
    stop = threading.Event()

    def ask(model: str, client: Client) -> None:
        turn = 0
        while not stop.is_set():
            try:
                answer = client.ask(model, UNSEEN[turn % len(UNSEEN)])
                outcomes["right" if style_of(answer) == model else f"wrong: {model}: {answer!r}"] += 1
            except openai.APIError as error:
                honest = not isinstance(error, openai.NotFoundError | openai.AuthenticationError)
                outcomes["refused" if honest else f"wrong: {model}: {error!r}"] += 1
                stop.wait(0.2)
            turn += 1

    threads = [threading.Thread(target=ask, args=item) for item in clients.items()]
    for thread in threads:
        thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_no_wrong_answer_and_recovery_without_help(fleet: Fleet, acme: Client, globex: Client) -> None:
    victim = "smol-shared-0"
    before = restarts(fleet)[victim]
    with traffic({"pirate": acme, "shout": acme, "support": globex}) as outcomes:
        wait_until(lambda: outcomes["right"] >= 3, seconds=60, what="traffic that is answered")
        fleet.kubectl.succeeds("exec", victim, "-n", DEMO, "-c", "engine", "--", "python", "-c", KILL_ALL_BUT_INIT)
        wait_until(lambda: restarts(fleet)[victim] > before, seconds=30, what="the container restarted")
        back = wait_until(lambda: victim in ready_replicas(fleet), seconds=120, what="the replica is ready again")
        answered = outcomes["right"]
        wait_until(lambda: outcomes["right"] >= answered + 6, seconds=60, what="answers after the return")
    print(f"\nready again after {back:.1f} s: {outcomes['right']} right answers, {outcomes['refused']} refused")
    assert not [outcome for outcome in outcomes if outcome.startswith("wrong")], outcomes
    wait_until(lambda: holds(fleet.get("lorapool", "smol"), "Ready"), seconds=30, what="the pool Ready")
    wait_until(
        lambda: not holds(fleet.get("lorapool", "smol"), "Degraded"), seconds=30, what="the pool not Degraded any more"
    )
    fleet.wait_ready(seconds=30)
