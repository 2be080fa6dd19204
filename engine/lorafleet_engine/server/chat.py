"""POST /v1/chat/completions: from its body to a plan, from pieces to its answers. Called by serving.py."""

from typing import Any

from lorafleet_engine.server.answers import Answer, AnswerPlan, ChoicePlan
from lorafleet_engine.server.choices import Piece, TokenLogprob
from lorafleet_engine.server.engine import TextTools
from lorafleet_engine.server.openai_errors import invalid
from lorafleet_engine.server.openai_requests import ChatRequest
from lorafleet_engine.server.prompts import chat_prompt, fit_tokens, sampling_params
from lorafleet_engine.server.shapes import AnswerHead, joined_text, usage_of
from lorafleet_engine.server.targets import Target


async def plan_chat(request: ChatRequest, target: Target, tools: TextTools) -> AnswerPlan:
    """What to generate. Raises OpenAIError."""
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs needs logprobs: true", "top_logprobs")
    prompt = await chat_prompt(request, tools, target.version)
    wanted = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    most = fit_tokens(prompt, wanted, target.window)
    choices = tuple(
        ChoicePlan(prompt, sampling_params(request, most, index, request.wanted_logprobs, tools))
        for index in range(request.n or 1)
    )
    return AnswerPlan(target.adapter, target.tenant, choices, request.stops, len(prompt), target.weight)


class ChatShape:
    """How chat answers look."""

    chunk_kind = "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any] | None:
        """The role comes first."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, piece: Piece) -> dict[str, Any]:
        """A piece as a choice of a chunk."""
        return {
            "index": piece.index,
            "delta": {"content": piece.text} if piece.text else {},
            "logprobs": _write_logprobs(list(piece.logprobs)) if piece.logprobs else None,
            "finish_reason": piece.finish_reason,
        }

    def whole(self, head: AnswerHead, pieces: list[list[Piece]], answer: Answer) -> dict[str, Any]:
        """The plain answer."""
        choices = []
        for index, parts in enumerate(pieces):
            entries = [entry for piece in parts for entry in piece.logprobs]
            choices.append(
                {
                    "index": index,
                    "message": {"role": "assistant", "content": joined_text(parts), "refusal": None},
                    "logprobs": _write_logprobs(entries) if entries else None,
                    "finish_reason": parts[-1].finish_reason,
                }
            )
        return head.wrap("chat.completion", choices) | {"usage": usage_of(answer)}


def _write_logprobs(entries: list[TokenLogprob]) -> dict[str, Any]:
    content = [_write_token(entry) | {"top_logprobs": [_write_token(top) for top in entry.top]} for entry in entries]
    return {"content": content, "refusal": None}


def _write_token(entry: TokenLogprob) -> dict[str, Any]:
    return {"token": entry.text, "logprob": entry.logprob, "bytes": list(entry.content)}
