"""One choice of an answer: tokens come in, certain text with its log probabilities comes out. Used by answers.py.

Knows stop strings (also where they span tokens) and how a choice ends; knows nothing of HTTP or of the API's shapes.
A plain answer is the sum of the pieces that a stream would send, so both are the same by construction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lorafleet_engine.messages import FinishReason, Token, Tokens
from lorafleet_engine.server.detokenizer import make_detokenizer
from lorafleet_engine.server.tokenizer import BaseTokenizer

FLOOR = -9999.0
"""What the official API writes for a log probability of minus infinity (JSON knows none)."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's bytes and log probability; `top` are the most likely ones, themselves without `top`."""

    content: bytes
    logprob: float
    top: tuple["TokenLogprob", ...] = ()

    @property
    def text(self) -> str:
        """The bytes as far as they are text on their own."""
        return self.content.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Piece:
    """What became certain of choice `index`. The last one has a finish reason."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None


class Choice:
    """State of one choice. `completion_tokens` counts what the client is told, also where a stop string cut it."""

    def __init__(self, index: int, tokenizer: BaseTokenizer, stops: tuple[str, ...], wants_logprobs: bool) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._detokenizer = make_detokenizer(tokenizer)
        self._stops = stops
        self._wants_logprobs = wants_logprobs
        self._pending = ""
        self.completion_tokens = 0

    def push(self, news: Tokens) -> Piece:
        """Take the loop's news. After a piece with a finish reason the choice is over, whatever else comes."""
        text, logprobs = "", []
        for position, token in enumerate(news.tokens):
            self.completion_tokens += 1
            if self._wants_logprobs:
                logprobs.append(self._logprob(token))
            ends = news.finish_reason == "stop" and position == len(news.tokens) - 1
            fresh, stopped = self._cut("" if ends else self._detokenizer.push(token.id))
            text += fresh
            if stopped:
                return Piece(self._index, text, tuple(logprobs), "stop")
        if news.finish_reason is None:
            return Piece(self._index, text, tuple(logprobs))
        return self._end(text, tuple(logprobs), news.finish_reason)

    def more(self, token_ids: Sequence[int]) -> Piece:
        """Take tokens of which there is no other news."""
        text = ""
        for token_id in token_ids:
            self.completion_tokens += 1
            fresh = self._detokenizer.push(token_id)
            if self._stops:
                fresh, stopped = self._cut(fresh)
                if stopped:
                    return Piece(self._index, text + fresh, finish_reason="stop")
            text += fresh
        return Piece(self._index, text)

    def _end(self, text: str, logprobs: tuple[TokenLogprob, ...], reason: FinishReason) -> Piece:
        fresh, stopped = self._cut(self._detokenizer.flush())
        text += fresh if stopped else fresh + self._pending
        self._pending = ""
        return Piece(self._index, text, logprobs, "stop" if stopped else reason)

    def _cut(self, fresh: str) -> tuple[str, bool]:
        """Hold back what may become a stop string; cut at the first one that is complete."""
        self._pending += fresh
        found = [position for stop in self._stops if (position := self._pending.find(stop)) >= 0]
        if found:
            return self._pending[: min(found)], True
        keep = max((_overlap(self._pending, stop) for stop in self._stops), default=0)
        certain = self._pending[: len(self._pending) - keep]
        self._pending = self._pending[len(certain) :]
        return certain, False

    def _logprob(self, token: Token) -> TokenLogprob:
        top = tuple(TokenLogprob(self._tokenizer.token_bytes(other), max(value, FLOOR)) for other, value in token.top)
        chosen = FLOOR if token.logprob is None else max(token.logprob, FLOOR)
        return TokenLogprob(self._tokenizer.token_bytes(token.id), chosen, top)


def _overlap(text: str, stop: str) -> int:
    """The longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-size:]):
            return size
    return 0
