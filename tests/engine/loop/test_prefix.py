"""Equal beginnings are computed once for a tenant and version, and nobody else finds them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lorafleet_engine.messages import Tokens, UnloadAdapter
from tests.engine.loop.conftest import Ask
from tests.engine.support.driver import Answer, LoopDriver
from tests.engine.support.tiny import TinyModel

PROMPT = tuple(range(20, 70))
KIND = "odd-r5"


def cached(answer: Answer) -> int:
    first = answer.news[0]
    assert isinstance(first, Tokens)
    return first.cached


@pytest.fixture
def driver(start: Callable[..., LoopDriver], model: TinyModel) -> LoopDriver:
    made = start(prefix_cache="tenant")
    made.load(KIND, model.adapters[KIND])
    return made


def test_second_time_only_the_rest_is_computed(driver: LoopDriver, ask: Ask) -> None:
    first = driver.run([ask("1", KIND, PROMPT)])["1"]
    before = driver.state.counters.prompt_tokens
    second = driver.run([ask("2", KIND, PROMPT)])["2"]
    assert (cached(first), cached(second)) == (0, 48)
    assert second.tokens == first.tokens
    assert driver.state.counters.prompt_tokens - before == len(PROMPT) - 48
    assert driver.state.counters.prefix_queried_tokens == 2 * len(PROMPT)
    assert driver.state.counters.prefix_hit_tokens == 48
    assert driver.state.pages_kv == 0


def test_answers_are_found_too(driver: LoopDriver, ask: Ask) -> None:
    first = driver.run([ask("1", None, PROMPT, max_tokens=20, ignore_eos=True)])["1"]
    second = driver.run([ask("2", None, (*PROMPT, *first.tokens))])["2"]
    assert cached(second) == 64


def test_another_version_tenant_or_beginning_finds_nothing(driver: LoopDriver, ask: Ask, model: TinyModel) -> None:
    driver.load("other", model.adapters[KIND])
    driver.run([ask("1", KIND, PROMPT)])
    asked = [
        ask("2", "other", PROMPT),
        ask("3", None, PROMPT),
        replace(ask("4", KIND, PROMPT), tenant="b"),
        ask("5", KIND, (9, *PROMPT[1:])),
    ]
    answers = driver.run(asked)
    assert [cached(answer) for answer in answers.values()] == [0, 0, 0, 0]


def test_tenants_find_each_others_where_the_engine_is_told_so(start: Callable[..., LoopDriver], ask: Ask) -> None:
    driver = start(prefix_cache="shared")
    driver.run([ask("1", None, PROMPT)])
    assert cached(driver.run([replace(ask("2", None, PROMPT), tenant="b")])["2"]) == 48


def test_an_unloaded_version_leaves_nothing(driver: LoopDriver, ask: Ask, model: TinyModel) -> None:
    driver.run([ask("1", KIND, PROMPT), ask("2", None, PROMPT)])
    driver.post(UnloadAdapter(KIND))
    driver.load(KIND, model.adapters[KIND])
    answers = driver.run([ask("3", KIND, PROMPT), ask("4", None, PROMPT)])
    assert [cached(answers[name]) for name in "34"] == [0, 48]


def test_off_unless_asked_for(start: Callable[..., LoopDriver], ask: Ask) -> None:
    driver = start()
    driver.run([ask("1", None, PROMPT)])
    assert cached(driver.run([ask("2", None, PROMPT)])["2"]) == 0
