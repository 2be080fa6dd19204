"""Requests in flight as the loop knows them. Used by loop.py: turns Generate into a Sequence, or says why not."""

import secrets
from dataclasses import dataclass, field

from lorafleet_engine.messages import Generate, RejectCode, SamplingParams, Usage
from lorafleet_engine.runner.sampler import Draw, plain
from lorafleet_engine.scheduler.sequence import Sequence

MAX_LOGPROBS = 100


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request and its sequence. `arrived` is the loop's clock; `started` once its first token was sent; `plain` says
    how it is drawn (see runner/sampler.py)."""

    request: Generate
    sequence: Sequence
    seed: int
    arrived: float
    started: bool = False
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        self.plain = plain(self.request.params)

    def draw(self, place: int, source: int) -> Draw:
        """How to draw the token at `place` of prompt and answer; `source` is that of the Work."""
        sequence = self.sequence
        position = place - sequence.prompt_length
        return Draw(self.request.params, self.seed, sequence.tokens, sequence.prompt_length, position, source)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(self.sequence.prompt_length, self.sequence.generated)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request cannot be run, before anything was done for it."""

    code: RejectCode
    message: str


@dataclass(frozen=True, slots=True)
class RequestRules:
    """What the loaded model allows."""

    max_model_len: int
    vocab: int
    eos_token_ids: tuple[int, ...]

    def refusal(self, request: Generate) -> Refusal | None:
        """The first reason why `request` cannot be run, or None."""
        prompt, params = request.prompt_ids, request.params
        if len(prompt) >= self.max_model_len:
            limit = f"the window holds {self.max_model_len} tokens, prompt and answer together"
            return Refusal("context_length_exceeded", f"{len(prompt)} prompt tokens do not fit: {limit}")
        if not prompt or not all(0 <= token < self.vocab for token in prompt):
            return Refusal("invalid", f"the prompt must hold token ids in [0, {self.vocab})")
        if not _legal(params):
            return Refusal("invalid", f"sampling parameters out of range: {params}")
        return None

    def accept(self, request: Generate, now: float) -> LiveRequest:
        """Make the sequence of a request that has no refusal; max_tokens is cut to the room left in the window."""
        params = request.params
        room = self.max_model_len - len(request.prompt_ids)
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else self.eos_token_ids)}
        sequence = Sequence(
            request.request_id,
            list(request.prompt_ids),
            min(params.max_tokens, room),
            frozenset(stops),
            tenant=request.tenant,
            weight=request.weight,
        )
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        return LiveRequest(request, sequence, seed, now)


def _legal(params: SamplingParams) -> bool:
    return (
        params.max_tokens >= 1
        and params.temperature >= 0
        and 0 < params.top_p <= 1
        and params.top_k >= 0
        and 0 <= params.min_p <= 1
        and params.repetition_penalty > 0
        and 0 <= (params.logprobs or 0) <= MAX_LOGPROBS
    )
