"""The request bodies of the OpenAI API that this engine acts on. Fields nobody knows are ignored; a known field that
would change the answer and is not supported is refused (refuse_unsupported), so that nobody gets a wrong answer.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lorafleet_engine.server.openai_errors import invalid

Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0)]


class StreamOptions(BaseModel):
    """What a stream carries besides the answer."""

    model_config = ConfigDict(strict=True)

    include_usage: bool = False


class SamplingRequest(BaseModel):
    """What chat and completions share."""

    model_config = ConfigDict(strict=True)

    model: Annotated[str, Field(max_length=256)] = ""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, the empty one left out."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)


class ContentPart(BaseModel):
    """A part of a message; only text."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ContentPart], Field(max_length=1024)]
    name: str | None = None

    def for_template(self) -> dict[str, Any]:
        """The form that published templates read: one string of text."""
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return {"role": self.role, "content": text} | ({"name": self.name} if self.name else {})


class ChatRequest(SamplingRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        """As SamplingParams.logprobs counts."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(SamplingRequest):
    """POST /v1/completions."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=128)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=128)]
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each text or ids."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if isinstance(given[0], int):
            return [[token for token in given if isinstance(token, int)]]
        return [item for item in given if not isinstance(item, int)]


def refuse_unsupported(body: dict[str, object]) -> None:
    """Raise a 400 that names the first field which would change the answer and is not supported."""
    for field, harmless in UNSUPPORTED.items():
        if field in body and not harmless(body[field]):
            raise invalid(f"{field} is not supported by this engine", field, "unsupported_parameter")


def _empty(value: object) -> bool:
    return not value


def _plain_text(value: object) -> bool:
    return value is None or (isinstance(value, dict) and value.get("type") == "text")


def _one_of(*harmless: object) -> Callable[[object], bool]:
    return lambda value: value is None or value in harmless


UNSUPPORTED: dict[str, Callable[[object], bool]] = {
    "tools": _empty,
    "tool_choice": _one_of("none", "auto"),
    "functions": _empty,
    "function_call": _one_of("none", "auto"),
    "response_format": _plain_text,
    "logit_bias": _empty,
    "audio": _empty,
    "modalities": _one_of(["text"]),
    "prediction": _empty,
    "reasoning_effort": _one_of("none"),
    "verbosity": _empty,
    "web_search_options": _one_of(),
    "suffix": _empty,
    "echo": _empty,
    "best_of": _one_of(1),
}
