"""POST /v1/completions: from its body to a plan, from pieces to its answers. Called by serving.py."""

from typing import Any

from lorafleet_engine.server.answers import Answer, AnswerPlan, ChoicePlan
from lorafleet_engine.server.choices import Piece, TokenLogprob
from lorafleet_engine.server.engine import TextTools
from lorafleet_engine.server.openai_errors import invalid
from lorafleet_engine.server.openai_requests import CompletionRequest
from lorafleet_engine.server.prompts import check_ids, encode, fit_tokens, sampling_params
from lorafleet_engine.server.shapes import AnswerHead, joined_text, usage_of
from lorafleet_engine.server.targets import Target

DEFAULT_TOKENS = 16
MAX_CHOICES = 128


async def plan_completion(request: CompletionRequest, target: Target, tools: TextTools) -> AnswerPlan:
    """What to generate: `n` choices for each prompt, in order. Raises OpenAIError."""
    copies = request.n or 1
    if copies * len(request.prompts) > MAX_CHOICES:
        raise invalid(f"n times the number of prompts is more than {MAX_CHOICES}", "n")
    choices: list[ChoicePlan] = []
    prompt_tokens = 0
    for given in request.prompts:
        prompt = await encode(given, tools, add_special_tokens=True) if isinstance(given, str) else tuple(given)
        check_ids(prompt, target.vocabulary)
        most = fit_tokens(prompt, request.max_tokens or DEFAULT_TOKENS, target.window)
        prompt_tokens += len(prompt)
        for copy in range(copies):
            choices.append(ChoicePlan(prompt, sampling_params(request, most, copy, request.logprobs, tools)))
    return AnswerPlan(target.adapter, target.tenant, tuple(choices), request.stops, prompt_tokens, target.weight)


class CompletionShape:
    """How completions look. Remembers how far each choice's text has come, for `text_offset`."""

    chunk_kind = "text_completion"

    def __init__(self) -> None:
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> dict[str, Any] | None:
        """Completions have no opening."""
        return None

    def delta(self, piece: Piece) -> dict[str, Any]:
        """A piece as a choice of a chunk."""
        return self._choice(piece.index, [piece])

    def whole(self, head: AnswerHead, pieces: list[list[Piece]], answer: Answer) -> dict[str, Any]:
        """The plain answer."""
        choices = [self._choice(index, parts) for index, parts in enumerate(pieces)]
        return head.wrap("text_completion", choices) | {"usage": usage_of(answer)}

    def _choice(self, index: int, parts: list[Piece]) -> dict[str, Any]:
        entries = [entry for piece in parts for entry in piece.logprobs]
        return {
            "index": index,
            "text": joined_text(parts),
            "logprobs": self._write_logprobs(index, entries) if entries else None,
            "finish_reason": parts[-1].finish_reason,
        }

    def _write_logprobs(self, index: int, entries: list[TokenLogprob]) -> dict[str, Any]:
        offsets = []
        for entry in entries:
            offsets.append(self._offsets.setdefault(index, 0))
            self._offsets[index] += len(entry.text)
        return {
            "tokens": [entry.text for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [{top.text: top.logprob for top in reversed(entry.top)} for entry in entries],
            "text_offset": offsets,
        }
