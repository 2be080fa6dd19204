"""Steps launched before the last one has landed: the same answers, and nothing of a late token is seen."""

from collections.abc import Callable
from typing import Any

import pytest

from lorafleet_engine.messages import Cancel, Drain, Drained, Tokens
from tests.engine.loop.conftest import Ask
from tests.engine.support.driver import LoopDriver
from tests.engine.support.tiny import TinyModel

KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 5},
    {"temperature": 0.9, "seed": 6, "top_p": 0.8},
    {"temperature": 0.9, "seed": 7, "top_k": 9, "logprobs": 2},
    {"logprobs": 1},
    {"repetition_penalty": 1.4, "presence_penalty": 0.5},
    {"repetition_penalty": 5.0},
    {"presence_penalty": 2.0, "frequency_penalty": 2.0, "temperature": 0.3, "seed": 8},
]


def test_overlapped_steps_give_the_same_answers(start: Callable[..., LoopDriver], model: TinyModel, ask: Ask) -> None:
    requests = [
        ask(str(n), "a@1" if n % 2 else None, tuple(range(n, 3 * n + 2)), max_tokens=12 - n % 5, **KINDS[n % 8])
        for n in range(16)
    ]
    answers = []
    for overlapped in (False, True):
        driver = start(overlapped=overlapped)
        driver.load("a@1", model.adapters["all-r8"])
        found = driver.run(requests)
        answers.append({name: (answer.tokens, answer.logprobs, answer.finish) for name, answer in found.items()})
        assert driver.state.pages_kv == 0
    assert answers[0].keys() == answers[1].keys()
    for name, (tokens, logprobs, finish) in answers[0].items():
        assert answers[1][name][0] == tokens
        assert answers[1][name][1] == pytest.approx(logprobs, abs=1e-4)
        assert answers[1][name][2] == finish


def test_what_follows_the_end_token_is_dropped(start: Callable[..., LoopDriver], ask: Ask) -> None:
    driver = start(overlapped=True)
    first = driver.run([ask("a", max_tokens=6)])["a"].tokens
    stopped = driver.run([ask("b", max_tokens=6, stop_token_ids=(first[2],))])["b"]
    assert (stopped.tokens, stopped.finish) == (first[:3], "stop")
    before = driver.state.counters.generated_tokens
    driver.post(Drain())
    assert [type(m) for m in driver.mailbox.outbox if isinstance(m, Drained)] == [Drained]
    assert before == driver.state.counters.generated_tokens == 9


def test_cancelled_in_flight(start: Callable[..., LoopDriver], ask: Ask) -> None:
    driver = start(overlapped=True)
    driver.post(ask("a", max_tokens=100))
    ends = [m for m in driver.post(Cancel("a")) if isinstance(m, Tokens)]
    assert [(m.finish_reason, m.tokens) for m in ends] == [("cancelled", ())]
    driver.post()
    assert driver.state.pages_kv == 0
    assert [m for m in driver.mailbox.outbox if isinstance(m, Tokens)] == ends
