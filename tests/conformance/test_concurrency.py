"""Sixteen requests at once over all adapters and the base answer as each does alone."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.conformance.client import BASE, Client, LoadedAdapter

PROMPTS = ("Once upon a time", "The", "A ship in the harbour, and then another one", "12345 67")


def test_sixteen_at_once_answer_as_alone(client: Client, adapters: list[LoadedAdapter]) -> None:
    versions = [BASE, *(adapter.key for adapter in adapters[:3])]
    cases = [(version, prompt, 6 + 5 * number) for version in versions for number, prompt in enumerate(PROMPTS)]

    def ask(case: tuple[str, str, int]) -> dict[str, Any]:
        version, prompt, tokens = case
        return client.complete(version, prompt, max_tokens=tokens, logprobs=2)

    alone = [ask(case) for case in cases]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, cases))

    for one, other in zip(alone, together, strict=True):
        assert_same(one["choices"][0], other["choices"][0])
        assert one["usage"] == other["usage"] or one["choices"][0]["text"] != other["choices"][0]["text"]


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The margin rule: equal up to the first position whose two best tokens differ by less than the margin."""
    margin, close = (1e-3, 2e-3) if os.environ.get("LORAFLEET_DTYPE", "float32") == "float32" else (0.3, 0.3)
    left, right = one["logprobs"], other["logprobs"]
    for position, token in enumerate(left["tokens"]):
        best = sorted(left["top_logprobs"][position].values(), reverse=True)
        if len(best) > 1 and best[0] - best[1] < margin:
            return
        assert token == right["tokens"][position]
        assert abs(left["token_logprobs"][position] - right["token_logprobs"][position]) <= close
    assert one["text"] == other["text"]
