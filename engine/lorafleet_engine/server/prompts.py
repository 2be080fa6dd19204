"""From a valid request to what the loop needs: prompt ids that fit the window, and sampling parameters.

Called by chat.py and completions.py. Long texts are tokenised off the event loop, so that streams go on meanwhile.
"""

import asyncio

from lorafleet_engine.messages import SamplingParams
from lorafleet_engine.server.engine import TextTools
from lorafleet_engine.server.openai_errors import invalid, too_long
from lorafleet_engine.server.openai_requests import ChatRequest, SamplingRequest
from lorafleet_engine.server.templates import TemplateError
from lorafleet_engine.server.version import Version

LONG_TEXT = 8_000
SEEDS = 1 << 64


async def chat_prompt(request: ChatRequest, tools: TextTools, version: Version | None) -> tuple[int, ...]:
    """Ids of a conversation, by the adapter's own chat template or the base's. Raises OpenAIError."""
    messages = [message.for_template() for message in request.messages]
    own = None if version is None else version.template
    try:
        # An adapter's template is its owner's code and runs apart; the base's is the pool owner's.
        text = tools.templates.render(messages) if own is None else await tools.runner.render(own, messages)
    except TemplateError as error:
        raise invalid(str(error), "messages") from error
    return await encode(text, tools, add_special_tokens=False)


async def encode(text: str, tools: TextTools, *, add_special_tokens: bool) -> tuple[int, ...]:
    """Ids of a text."""
    if len(text) < LONG_TEXT:
        return tools.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tools.tokenizer.encode, text, add_special_tokens=add_special_tokens)


def fit_tokens(prompt: tuple[int, ...], wanted: int | None, window: int) -> int:
    """How many tokens the answer may have: what is wanted, cut to the room left. Raises OpenAIError."""
    if not prompt:
        raise invalid("the prompt is empty", "prompt")
    room = window - len(prompt)
    if room < 1:
        raise too_long(len(prompt), window)
    return room if wanted is None else min(wanted, room)


def check_ids(prompt: tuple[int, ...], vocabulary: int) -> None:
    """Refuse ids that the model does not have. Raises OpenAIError."""
    if prompt and max(prompt) >= vocabulary:
        raise invalid(f"the prompt holds token ids above {vocabulary - 1}", "prompt")


def sampling_params(
    request: SamplingRequest, max_tokens: int, index: int, logprobs: int | None, tools: TextTools
) -> SamplingParams:
    """Parameters of choice `index`: with a seed each choice draws from a seed of its own."""
    ends = () if request.ignore_eos or tools.tokenizer.eos_id is None else (tools.tokenizer.eos_id,)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_given(request.temperature, 1.0),
        top_p=_given(request.top_p, 1.0),
        top_k=max(request.top_k or 0, 0),
        min_p=_given(request.min_p, 0.0),
        presence_penalty=_given(request.presence_penalty, 0.0),
        frequency_penalty=_given(request.frequency_penalty, 0.0),
        repetition_penalty=_given(request.repetition_penalty, 1.0),
        seed=None if request.seed is None else (request.seed + index) % SEEDS,
        stop_token_ids=(*(request.stop_token_ids or ()), *ends),
        logprobs=logprobs,
        ignore_eos=bool(request.ignore_eos),
    )


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
