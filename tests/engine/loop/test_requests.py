"""What becomes of requests: tokens, ends, refusals, cancellation, drain."""

from collections.abc import Callable

import pytest

from lorafleet_engine.messages import Cancel, Drain, Drained, Rejected, Shutdown, StepLimits, Tokens, Usage
from tests.engine.loop.conftest import Ask
from tests.engine.support.driver import LoopDriver


def test_tokens_come_one_by_one_and_usage_last(driver: LoopDriver, ask: Ask) -> None:
    answer = driver.run([ask("a", max_tokens=3)])["a"]
    news = [message for message in answer.news if isinstance(message, Tokens)]
    assert [len(message.tokens) for message in news] == [1, 1, 1]
    assert [message.finish_reason for message in news] == [None, None, "length"]
    assert [message.usage for message in news] == [None, None, Usage(3, 3)]
    assert [message.queue_s is not None for message in news] == [True, False, False]
    assert driver.state.pages_kv == 0
    assert driver.state.counters.finished == 1


def test_end_token_stops_unless_ignored(driver: LoopDriver, ask: Ask) -> None:
    first = driver.run([ask("a", max_tokens=6)])["a"].tokens
    assert len(set(first)) == 6, "the test needs different tokens"
    stopped = driver.run([ask("b", max_tokens=6, stop_token_ids=(first[2],))])["b"]
    assert (stopped.tokens, stopped.finish) == (first[:3], "stop")
    last = stopped.news[-1]
    assert isinstance(last, Tokens)
    assert (last.stop_token_id, last.usage) == (first[2], Usage(3, 3))


def test_answer_is_cut_to_the_window(driver: LoopDriver, ask: Ask) -> None:
    answer = driver.run([ask("a", prompt=(3,) * 120, max_tokens=1000)])["a"]
    assert (len(answer.tokens), answer.finish) == (8, "length")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"adapter": "nobody@sha256:0"}, "version_missing"),
        ({"prompt": (3,) * 128}, "context_length_exceeded"),
        ({"prompt": ()}, "invalid"),
        ({"prompt": (320,)}, "invalid"),
        ({"prompt": (-1,)}, "invalid"),
        ({"max_tokens": 0}, "invalid"),
        ({"temperature": -1.0}, "invalid"),
        ({"top_p": 0.0}, "invalid"),
        ({"min_p": 1.5}, "invalid"),
        ({"top_k": -1}, "invalid"),
        ({"repetition_penalty": 0.0}, "invalid"),
        ({"logprobs": 1000}, "invalid"),
    ],
)
def test_refusals(driver: LoopDriver, ask: Ask, changes: dict[str, object], code: str) -> None:
    answer = driver.run([ask("a", **changes)])["a"]
    (news,) = answer.news
    assert isinstance(news, Rejected)
    assert news.code == code
    assert news.message
    assert driver.state.counters.rejected == 1


def test_same_id_twice_is_refused_and_the_first_goes_on(driver: LoopDriver, ask: Ask) -> None:
    (*_, refused), *_ = ([m for m in driver.post(ask("a"), ask("a")) if isinstance(m, Rejected)],)
    assert refused.code == "invalid"
    assert driver.state.running == 1


def test_full_queue(start: Callable[..., LoopDriver], ask: Ask) -> None:
    driver = start(StepLimits(tokens=8, sequences=1, waiting=2))
    codes = [m.code for m in driver.post(*(ask(str(n)) for n in range(5))) if isinstance(m, Rejected)]
    assert codes == ["queue_full"] * 3


def test_cancel_frees_and_tells(driver: LoopDriver, ask: Ask) -> None:
    driver.post(ask("a", max_tokens=100), ask("b", max_tokens=100))
    assert driver.state.pages_kv == 2
    messages = driver.post(Cancel("a"), Cancel("unknown"))
    ends = [m for m in messages if isinstance(m, Tokens) and m.finish_reason]
    assert [(m.request_id, m.finish_reason, m.usage) for m in ends] == [("a", "cancelled", Usage(3, 1))]
    assert driver.state.pages_kv == 1
    assert driver.state.counters.cancelled == 1


def test_preempted_requests_give_the_same_answer(
    start: Callable[..., LoopDriver], memory_for: Callable[[LoopDriver, int], int], ask: Ask
) -> None:
    requests = [ask(str(n), prompt=tuple(range(9 * n, 9 * n + 30)), max_tokens=60) for n in range(6)]
    calm = start()
    expected = {request.request_id: calm.run([request])[request.request_id].tokens for request in requests}
    tight = start(memory_bytes=memory_for(calm, 14))
    answers = tight.run(requests)
    assert tight.state.counters.preemptions > 0
    assert {name: answers[name].tokens for name in expected} == expected
    assert tight.state.pages_kv == 0


def test_drain_finishes_the_live_and_refuses_the_new(driver: LoopDriver, ask: Ask) -> None:
    driver.post(ask("a", max_tokens=3))
    messages = driver.post(Drain(), ask("late"))
    assert [m.code for m in messages if isinstance(m, Rejected)] == ["draining"]
    assert not any(isinstance(m, Drained) for m in messages)
    assert driver.state.draining
    driver.post()
    after = driver.post()
    everything = driver.mailbox.outbox
    assert sum(isinstance(m, Drained) for m in everything) == 1
    assert [m.finish_reason for m in everything if isinstance(m, Tokens)][-1] == "length"
    assert not any(isinstance(m, Drained) for m in after)


def test_shutdown_leaves(driver: LoopDriver, ask: Ask) -> None:
    driver.mailbox.inbox += [ask("a", max_tokens=100), Shutdown()]
    driver.loop.run()
    assert type(driver.mailbox.outbox[0]).__name__ == "LoopReady"


def test_the_sums_over_steps_tell_decodes_from_prompts(driver: LoopDriver, ask: Ask) -> None:
    driver.run([ask("a", max_tokens=4), ask("b", max_tokens=4)])
    sums = driver.state.sums
    assert sums.steps == driver.state.counters.steps
    assert 0 < sums.decode_steps < sums.steps, "the first step had the prompts"
    assert sums.sequences == 2 * sums.decode_steps
    assert sums.sequences_squared == 4 * sums.decode_steps
    assert 0 < sums.decode_seconds < sums.seconds
    assert sums.seconds_sequences == pytest.approx(2 * sums.decode_seconds)
    assert (sums.rank_sum, sums.sequences_rank) == (0, 0), "the base answers"
