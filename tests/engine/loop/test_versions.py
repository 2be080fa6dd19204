"""Versions load and unload while others decode; what is wrong is refused and harms nobody."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.loop import STATE_GAP_S, EngineLoop
from lorafleet_engine.messages import (
    AdapterLoaded,
    AdapterRejected,
    AdapterUnloaded,
    BlobRef,
    Cancel,
    LoadAdapter,
    LoopState,
    Rejected,
    StepLimits,
    Tokens,
    UnloadAdapter,
)
from tests.engine.loop.conftest import Ask
from tests.engine.support.driver import ListMailbox, LoopDriver, collect
from tests.engine.support.tiny import TinyModel


@pytest.fixture
def blob(model: TinyModel, driver: LoopDriver, tmp_path: Path) -> BlobRef:
    return pack_adapter(model.adapters["all-r8"], driver.core.config.shape, "float32").write(tmp_path / "blob")


def test_load_reports_the_planners_bytes(driver: LoopDriver, model: TinyModel, blob: BlobRef) -> None:
    loaded = driver.load("a@1", model.adapters["all-r8"])
    assert isinstance(loaded, AdapterLoaded)
    assert loaded.bytes == blob.bytes == driver.state.adapter_bytes
    assert loaded.bytes <= loaded.resident_bytes < loaded.bytes + driver.core.geometry.page_bytes
    (version,) = driver.state.versions
    assert (version.key, version.rank, version.phase, version.requests) == ("a@1", 8, "resident", 0)
    again = driver.load("a@1", model.adapters["all-r8"])
    assert again == loaded
    assert len(driver.state.versions) == 1


def test_unload_returns_the_bytes(driver: LoopDriver, model: TinyModel) -> None:
    free = driver.core.pages.free
    loaded = driver.load("a@1", model.adapters["all-r8"])
    assert isinstance(loaded, AdapterLoaded)
    unloaded = driver.post(UnloadAdapter("a@1"))[0]
    assert unloaded == AdapterUnloaded("a@1", loaded.bytes)
    assert driver.core.pages.free == free
    assert driver.state.adapter_bytes == 0
    assert driver.post(UnloadAdapter("a@1"))[0] == AdapterUnloaded("a@1", 0)


def test_one_state_tells_of_many_loads_beside_running_requests(driver: LoopDriver, blob: BlobRef, ask: Ask) -> None:
    now, mailbox = 0.0, ListMailbox()
    loop = EngineLoop(driver.core, mailbox, 60.0, lambda: now)
    mailbox.inbox = [ask("x", max_tokens=40)]
    loop.turn()
    mailbox.outbox.clear()
    for number in range(8):
        mailbox.inbox = [LoadAdapter(f"a{number}@1", blob)]
        now += STATE_GAP_S / 4
        loop.turn()
    states = [each for each in mailbox.outbox if isinstance(each, LoopState)]
    assert sum(isinstance(each, AdapterLoaded) for each in mailbox.outbox) == 8
    assert [len(each.versions) for each in states] == [4, 8]
    mailbox.inbox = [UnloadAdapter("a0@1"), Cancel("x")]
    loop.turn()
    last = mailbox.outbox[-1]
    assert isinstance(last, LoopState), "an idle loop tells at once"
    assert (len(last.versions), last.running) == (7, 0)


def test_unload_while_in_use_drains(driver: LoopDriver, model: TinyModel, ask: Ask) -> None:
    driver.load("a@1", model.adapters["all-r8"])
    expected = driver.run([ask("alone", "a@1")])["alone"].tokens
    driver.post(ask("user", "a@1"))
    messages = driver.post(UnloadAdapter("a@1"), ask("late", "a@1"))
    assert [m.code for m in messages if isinstance(m, Rejected)] == ["version_missing"]
    assert [version.phase for version in driver.state.versions] == ["draining"]
    assert isinstance(driver.load("a@1", model.adapters["all-r8"]), AdapterRejected)
    for _ in range(8):
        driver.post()
    outbox = driver.mailbox.outbox
    tokens = [t.id for m in outbox if isinstance(m, Tokens) and m.request_id == "user" for t in m.tokens]
    assert tokens == expected
    (gone,) = [m for m in outbox if isinstance(m, AdapterUnloaded)]
    assert gone.bytes_freed > 0
    assert driver.state.versions == ()


def test_cancelling_the_last_user_ends_the_drain(driver: LoopDriver, model: TinyModel, ask: Ask) -> None:
    driver.load("a@1", model.adapters["all-r8"])
    driver.post(ask("user", "a@1", max_tokens=100))
    driver.post(UnloadAdapter("a@1"))
    assert any(isinstance(m, AdapterUnloaded) for m in driver.post(Cancel("user")))
    assert driver.state.adapter_bytes == 0


def test_reload_under_the_same_key_gives_the_new_answer(driver: LoopDriver, model: TinyModel, ask: Ask) -> None:
    driver.load("a@1", model.adapters["all-r8"])
    old = driver.run([ask("x", "a@1")])["x"].tokens
    driver.post(UnloadAdapter("a@1"))
    driver.load("a@1", model.adapters["odd-r5"])
    driver.load("b@1", model.adapters["all-r8"])
    answers = driver.run([ask("new", "a@1"), ask("old", "b@1")])
    assert answers["old"].tokens == old
    assert answers["new"].tokens != old


def test_loads_and_unloads_leave_a_running_answer_alone(driver: LoopDriver, model: TinyModel, ask: Ask) -> None:
    driver.load("a@1", model.adapters["all-r8"])
    expected = driver.run([ask("alone", "a@1", max_tokens=40)])["alone"].tokens
    driver.post(ask("user", "a@1", max_tokens=40))
    for number, kind in enumerate(["odd-r5", "r256", "narrow-qv", "layers"] * 4):
        driver.load(f"{kind}@{number}", model.adapters[kind])
        driver.post(UnloadAdapter(f"{kind}@{number}"))
    for _ in range(40):
        driver.post()
    assert collect(driver.mailbox.outbox)["user"].tokens == expected


def test_many_loads_and_unloads_do_not_grow(driver: LoopDriver, blob: BlobRef) -> None:
    before = driver.core.pages.free
    for number in range(100):
        assert isinstance(driver.post(LoadAdapter(f"v@{number}", blob))[0], AdapterLoaded)
        assert isinstance(driver.post(UnloadAdapter(f"v@{number}"))[0], AdapterUnloaded)
    assert driver.core.pages.free == before
    assert driver.state.counters.unloads == 100


def test_fills_to_the_budget_and_then_says_what_is_missing(driver: LoopDriver, blob: BlobRef) -> None:
    budget = driver.core.plan.budget.adapters
    room = budget // blob.bytes
    for number in range(room):
        assert isinstance(driver.post(LoadAdapter(f"v@{number}", blob))[0], AdapterLoaded)
    refused = driver.post(LoadAdapter("one@more", blob))[0]
    assert isinstance(refused, AdapterRejected)
    assert (refused.code, refused.needed, refused.free) == ("does_not_fit", blob.bytes, budget - room * blob.bytes)
    driver.post(UnloadAdapter("v@0"))
    assert isinstance(driver.post(LoadAdapter("one@more", blob))[0], AdapterLoaded)


def test_a_load_takes_pages_back_from_kv(
    start: Callable[..., LoopDriver], memory_for: Callable[[LoopDriver, int], int], model: TinyModel, ask: Ask
) -> None:
    calm = start()
    requests = [ask(str(n), prompt=tuple(range(n, n + 40)), max_tokens=20) for n in range(6)]
    expected = {request.request_id: calm.run([request])[request.request_id].tokens for request in requests}
    driver = start(memory_bytes=memory_for(calm, 18))
    driver.post(*requests)
    for _ in range(20):
        driver.post()
        if driver.core.pages.free <= 1:
            break
    assert driver.core.pages.free <= 1
    before = driver.core.scheduler.preemptions
    assert isinstance(driver.load("a@1", model.adapters["attention-r4"]), AdapterLoaded)
    assert driver.core.scheduler.preemptions > before
    for _ in range(200):
        driver.post()
    answers = collect(driver.mailbox.outbox)
    assert {name: answers[name].tokens for name in expected} == expected


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"dtype": "bfloat16"}, "wrong_model"),
        ({"module_ranks": ((8,) * 7,) * 2}, "wrong_model"),
        ({"module_ranks": ((8,) * 6,) * 3}, "wrong_model"),
        ({"rank": 9}, "bad_blob"),
        ({"rank": 0}, "bad_blob"),
        ({"bytes": 100}, "bad_blob"),
        ({"path": "/nonexistent"}, "bad_blob"),
    ],
)
def test_wrong_blobs_are_refused(
    driver: LoopDriver, blob: BlobRef, changes: dict[str, object], code: str, ask: Ask
) -> None:
    before = driver.core.pages.free
    refused = driver.post(LoadAdapter("bad@1", replace(blob, **changes)))[0]  # type: ignore[arg-type]
    assert isinstance(refused, AdapterRejected)
    assert refused.code == code
    assert driver.core.pages.free == before
    assert driver.run([ask("a")])["a"].finish == "length"


def test_truncated_blob(driver: LoopDriver, blob: BlobRef) -> None:
    path = Path(blob.path)
    path.write_bytes(path.read_bytes()[:-4])
    refused = driver.post(LoadAdapter("bad@1", blob))[0]
    assert isinstance(refused, AdapterRejected)
    assert refused.code == "bad_blob"


def test_rank_above_the_steps_cap(start: Callable[..., LoopDriver], model: TinyModel) -> None:
    driver = start(StepLimits(tokens=64, sequences=8, rank_sum=16))
    refused = driver.load("a@1", model.adapters["r256"])
    assert isinstance(refused, AdapterRejected)
    assert refused.code == "rank_above_limit"


def test_an_adapter_that_overflows_ends_its_own_requests_only(driver: LoopDriver, blob: BlobRef, ask: Ask) -> None:
    expected = driver.run([ask("alone", prompt=(9, 8, 7))])["alone"].tokens
    data = torch.full((blob.bytes // 4,), 3e38)
    Path(blob.path).write_bytes(data.numpy().tobytes())
    driver.post(LoadAdapter("huge@1", blob))
    long = tuple(range(14))
    answers = driver.run(
        [ask("bad", "huge@1", prompt=long), ask("good", prompt=(9, 8, 7)), ask("bad2", "huge@1", prompt=long)]
    )
    assert answers["good"].tokens == expected
    assert (answers["bad"].finish, answers["bad"].tokens) == ("error", [])
    assert answers["bad2"].finish == "error"
    later = driver.run([ask(str(number), prompt=(9, 8, 7)) for number in range(3)])
    assert [later[str(number)].tokens for number in range(3)] == [expected] * 3, "in pages that held infinities"
