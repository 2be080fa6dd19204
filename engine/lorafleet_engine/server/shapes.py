"""What every answer of the OpenAI API carries, plain or in chunks. Shared by chat.py and completions.py."""

from dataclasses import dataclass
from typing import Any, Protocol

from lorafleet_engine.server.answers import Answer
from lorafleet_engine.server.choices import Piece


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """Identity of an answer: `model` is the request's, `fingerprint` the adapter's (or base's) digest."""

    id: str
    created: int
    model: str
    fingerprint: str | None

    def wrap(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An object of the API around some choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


class AnswerShape(Protocol):
    """How one endpoint writes its answers."""

    chunk_kind: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """A choice that opens its stream, if the endpoint has such."""
        ...

    def delta(self, piece: Piece) -> dict[str, Any]:
        """A piece as a choice of a chunk."""
        ...

    def whole(self, head: AnswerHead, pieces: list[list[Piece]], answer: Answer) -> dict[str, Any]:
        """The plain answer from the pieces of each choice."""
        ...


def usage_of(answer: Answer) -> dict[str, Any]:
    """The usage object."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def joined_text(pieces: list[Piece]) -> str:
    """The text of a choice."""
    return "".join(piece.text for piece in pieces)
