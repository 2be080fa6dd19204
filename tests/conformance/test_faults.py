"""What happens when a child process dies or hangs, and how an engine drains. Needs engines that run here."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.names import EXIT_BASE_DOES_NOT_FIT
from tests.conformance.client import BASE, Client, until
from tests.support.engine_process import Engine, running_engine, stop, wait_ready
from tests.support.tiny_model import AdapterRecipe, make_adapter, make_model

LONGEST_GAP_SECONDS = 2.0
pytestmark = pytest.mark.timeout(300)  # each engine of its own imports torch, on whatever the machine has left


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory, local: Engine) -> Iterator[Client]:
    """An engine that the test may end."""
    folder = tmp_path_factory.mktemp("own")
    make_model(folder / "volumes" / "models" / "tiny")
    with running_engine(folder, "pvc://models/tiny", DRAIN_SECONDS="60") as engine, Client(engine) as client:
        wait_ready(engine)
        yield client


def read_for(client: Client, seconds: float) -> float:
    """Stream for some time; the longest silence in seconds."""
    deadline, longest = time.monotonic() + seconds, 0.0
    while time.monotonic() < deadline:
        with client.streaming("/v1/completions", BASE, client.long_body()) as events:
            next(events)
            last = time.monotonic()
            for _ in events:
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
                if last > deadline:
                    break
    return longest


def test_a_killed_loader_leaves_the_stream_unbroken_and_comes_back(client: Client, local: Engine) -> None:
    assert local.folder is not None
    make_adapter(local.folder / "volumes/models/after", AdapterRecipe(11))
    before = local.children()
    threading.Timer(0.5, os.kill, (before["loader"], signal.SIGKILL)).start()

    assert read_for(client, 3) < LONGEST_GAP_SECONDS

    after = until(local.children, lambda now: now.get("loader", before["loader"]) != before["loader"])
    assert after["loop"] == before["loop"]
    loaded = client.bring("after", "pvc://models/after")
    assert client.complete(loaded.key)["choices"]
    client.delete("after", loaded.digest)


def test_a_stopped_loader_leaves_the_stream_unbroken_and_finishes_its_job(client: Client, local: Engine) -> None:
    assert local.folder is not None
    make_adapter(local.folder / "volumes/models/slow", AdapterRecipe(12))
    loader = local.children()["loader"]
    os.kill(loader, signal.SIGSTOP)
    try:
        body = {"generation": 1, "source": {"uri": "pvc://models/slow"}}
        assert client.admin("POST", "/adapters/slow/inspect", body).status_code == 202
        assert read_for(client, 10) < LONGEST_GAP_SECONDS
    finally:
        os.kill(loader, signal.SIGCONT)

    assert client.inspect("slow", "pvc://models/slow").status_code == 200
    assert local.children()["loader"] == loader


def test_a_job_whose_loader_dies_runs_again_in_the_next(client: Client, local: Engine) -> None:
    assert local.folder is not None
    make_adapter(local.folder / "volumes/models/again", AdapterRecipe(13))
    loader = local.children()["loader"]
    os.kill(loader, signal.SIGSTOP)
    body = {"generation": 1, "source": {"uri": "pvc://models/again"}}
    assert client.admin("POST", "/adapters/again/inspect", body).status_code == 202
    os.kill(loader, signal.SIGKILL)

    assert client.inspect("again", "pvc://models/again").status_code == 200


def test_an_adapter_s_endless_chat_template_hurts_nobody_else(client: Client, local: Engine) -> None:
    assert local.folder is not None
    folder = make_adapter(local.folder / "volumes/models/endless", AdapterRecipe(14))
    loops = "".join(f"{{% for i{depth} in range(99999) %}}" for depth in range(3))
    (folder / "chat_template.jinja").write_text(loops + "{% endfor %}" * 3)
    version = client.bring("endless", "pvc://models/endless")
    answers: list[httpx.Response] = []
    body = {"messages": [{"role": "user", "content": "x"}]}
    asking = threading.Thread(target=lambda: answers.append(client.post("/v1/chat/completions", version.key, body)))
    asking.start()

    assert read_for(client, 3) < LONGEST_GAP_SECONDS

    asking.join(60)
    assert [answer.status_code for answer in answers] == [400]
    assert client.complete(version.key)["choices"]
    client.delete("endless", version.digest)


def test_a_drained_engine_finishes_what_runs_and_takes_nothing_new(own: Client) -> None:
    with own.streaming("/v1/completions", BASE, own.long_body(300)) as events:
        next(events)
        answer = own.admin("POST", "/drain")
        assert (answer.status_code, answer.json()["inFlight"]) == (202, 1)
        assert httpx.get(f"{own.engine.state}/readyz").status_code == 503
        assert httpx.get(f"{own.engine.state}/livez").status_code == 200
        refused = own.post("/v1/completions", BASE, {"prompt": "x"})
        assert (refused.status_code, refused.headers["x-lorafleet-retry"]) == (503, "1")
        chunks = list(events)

    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert own.state()["draining"]
    assert stop(own.engine) == 0


def test_an_engine_drained_while_it_starts_stays_unready(
    tmp_path_factory: pytest.TempPathFactory, local: Engine
) -> None:
    folder = tmp_path_factory.mktemp("early")
    (folder / "volumes" / "models").mkdir(parents=True)
    with running_engine(folder, "pvc://models/tiny") as engine, Client(engine) as client:
        until(lambda: _problem_of(client), lambda found: found == "source_unreachable", 60)
        assert client.admin("POST", "/drain").status_code == 202
        make_model(folder / "volumes" / "models" / "tiny")
        until(lambda: client.state().get("memory"), bool, 200)
        assert httpx.get(f"{engine.state}/readyz").status_code == 503
        assert stop(engine) == 0


def _problem_of(client: Client) -> str:
    try:
        found: str = client.state()["base"].get("problem", {}).get("code", "")
    except httpx.TransportError:
        return ""
    return found


def test_sigterm_finishes_what_runs_and_exits_cleanly(own: Client) -> None:
    assert own.engine.process is not None
    with own.streaming("/v1/completions", BASE, own.long_body(300)) as events:
        next(events)
        own.engine.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{own.engine.state}/readyz").status_code, lambda status: status == 503, 5)
        chunks = list(events)

    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert own.engine.process.wait(20) == 0


def test_a_dead_loop_ends_the_engine(own: Client) -> None:
    assert own.engine.process is not None
    children = own.engine.children()
    os.kill(children["loop"], signal.SIGKILL)

    assert own.engine.process.wait(20) == 1
    until(lambda: os.path.exists(f"/proc/{children['loader']}"), lambda alive: not alive, 5)


def test_a_base_that_memory_cannot_hold_is_an_exit_status_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, local: Engine
) -> None:
    """The operator tells it from other ends by that (operator/lorafleet_operator/shell/records.py)."""
    folder = tmp_path_factory.mktemp("small")
    make_model(folder / "volumes" / "models" / "tiny")
    with running_engine(folder, "pvc://models/tiny", MEMORY_BYTES=str(1 << 20), DEVICE="cpu") as engine:
        assert engine.process is not None
        assert engine.process.wait(60) == EXIT_BASE_DOES_NOT_FIT


def test_requests_of_a_dead_loop_are_told_so(own: Client) -> None:
    """A plain request can be answered by another replica, a stream ends with an error and not as if it were whole."""
    answers, last = list[httpx.Response](), list[dict[str, object]]()
    asking = threading.Thread(target=lambda: answers.append(own.post("/v1/completions", BASE, own.long_body())))
    with Client(own.engine) as other, other.streaming("/v1/completions", BASE, own.long_body()) as events:
        next(events)
        asking.start()
        until(own.running, lambda count: count == 2)
        os.kill(own.engine.children()["loop"], signal.SIGKILL)
        asking.join(20)
        with pytest.raises(AssertionError):  # no [DONE]
            last.extend(events)
    assert last[-1]["error"]
    assert (answers[0].status_code, answers[0].headers["x-lorafleet-retry"]) == (503, "1")
    assert answers[0].json()["error"]["code"] == "engine_died"


def test_children_die_with_the_engine(own: Client) -> None:
    assert own.engine.process is not None
    children = own.engine.children()
    own.engine.process.kill()
    own.engine.process.wait()

    for pid in children.values():
        until(lambda pid=pid: _state_of(pid), lambda state: state in ("", "Z"), 5)  # type: ignore[misc]


def test_tokens_rotate_without_a_restart(own: Client) -> None:
    engine = own.engine
    assert engine.folder is not None
    (engine.folder / "tokens" / "state").write_text("fresh\nstate-token\n")

    def status(token: str) -> int:
        return httpx.get(f"{engine.state}/state", headers={"authorization": f"Bearer {token}"}).status_code

    until(lambda: status("fresh"), lambda found: found == 200, 5)
    assert status(engine.tokens[PortName.STATE]) == 200
    (engine.folder / "tokens" / "state").write_text("fresh\n")
    until(lambda: status(engine.tokens[PortName.STATE]), lambda found: found == 401, 5)


def _state_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
