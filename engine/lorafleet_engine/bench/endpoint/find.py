"""Finds out what an endpoint serves before anything is measured, and refuses with a reason. Used by session.py."""

from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import aiohttp

from lorafleet_contracts.admin import EngineState, VersionPhase, VersionState
from lorafleet_contracts.names import BASE_MODEL, HEADER_MODEL
from lorafleet_engine.bench.endpoint.asks import Ask
from lorafleet_engine.bench.endpoint.client import Client, Outcome, Target, message_of
from lorafleet_engine.bench.endpoint.models import Catalogue, Model, listed_models

LIST_PATH = "/v1/models"
LIST_TIMEOUT_S = 30.0
PROBE_TOKENS = 64
PROBE_ANSWER = 4


class EndpointError(Exception):
    """The endpoint cannot be measured as it was given; the message says what to do."""


async def list_models(
    session: aiohttp.ClientSession, url: str, key: str, base: str | None, state: EngineState | None
) -> Catalogue:
    """What the endpoint lists, or the state port of an engine, which lists nothing itself.

    Raises EndpointError, ModelsError.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        timeout = aiohttp.ClientTimeout(total=LIST_TIMEOUT_S)
        async with session.get(url + LIST_PATH, headers=headers, timeout=timeout) as answer:
            body = await answer.read()
            if answer.status == HTTPStatus.OK:
                return listed_models(await answer.json(content_type=None), base)
            if state is not None and answer.status == HTTPStatus.NOT_FOUND:
                return _of_state(state)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EndpointError(f"{url} cannot be reached: {error or 'no answer'}; check --url") from error
    except ValueError as error:
        raise EndpointError(
            f"{url}{LIST_PATH} did not answer in JSON: is this an OpenAI-compatible endpoint?"
        ) from error
    raise _refusal(f"GET {url}{LIST_PATH}", answer.status, message_of(body))


def with_versions(catalogue: Catalogue, state: EngineState) -> Catalogue:
    """Adapters with rank and version as the engine has them, found by their version or their name."""
    known: dict[str, VersionState] = {}
    for version in state.versions:
        known[version.key] = version
        if version.display is not None and version.phase is VersionPhase.RESIDENT:
            known.setdefault(version.display.name, version)
            known.setdefault(f"{version.display.namespace}/{version.display.name}", version)

    def filled(model: Model) -> Model:
        version = known.get(model.version or model.id)
        if version is None:
            return model
        rank = version.rank if model.rank is None and version.rank else model.rank
        return replace(model, rank=rank, version=version.key)

    return replace(catalogue, adapters=tuple(map(filled, catalogue.adapters)))


async def probe(session: aiohttp.ClientSession, target: Target, catalogue: Catalogue) -> tuple[Target, dict[str, Any]]:
    """One request to the base and to the first adapter; the target with words as long as the endpoint's tokens say.

    Raises EndpointError for an endpoint that does not answer them.
    """
    found: dict[str, Any] = {}
    for model in filter(None, (catalogue.base, catalogue.adapters[0])):
        ask = Ask(0.0, 0, model, None, PROBE_TOKENS, PROBE_ANSWER, "probe")
        outcome = Outcome(ask, 0.0)
        await Client(session, target).answer(outcome, 0.0, "probe")
        if outcome.error:
            _refuse(target, model, outcome)
        found[model.id] = {"prompt_tokens": outcome.prompt_tokens, "answer_tokens": outcome.tokens}
        if target.vocabulary is None and outcome.prompt_tokens:
            target = replace(target, words_per_token=target.words_per_token * PROBE_TOKENS / outcome.prompt_tokens)
    return target, found


def _refuse(target: Target, model: Model, outcome: Outcome) -> None:
    if outcome.error == "unreachable":
        raise EndpointError(f"{target.url} cannot be reached: {outcome.detail}; check --url")
    if outcome.error.startswith("HTTP "):
        status = int(outcome.error.removeprefix("HTTP "))
        raise _refusal(f"a request to the model {model.id!r}", status, outcome.detail)
    raise EndpointError(f"a request to the model {model.id!r} failed: {outcome.error}: {outcome.detail}")


def _refusal(what: str, status: int, detail: str) -> EndpointError:
    advice: Mapping[int, str] = {
        HTTPStatus.UNAUTHORIZED: "check --key",
        HTTPStatus.FORBIDDEN: "this key may not do that: check --key and the models",
        HTTPStatus.NOT_FOUND: "check --url, and the names in --models or --base",
        HTTPStatus.BAD_REQUEST: "if it refuses a field, try --no-ignore-eos, or another --api",
        HTTPStatus.TOO_MANY_REQUESTS: "the key's limits are used up",
    }
    hint = advice.get(status, "see the endpoint's log" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "")
    return EndpointError(f"{what} was answered with {status}: {detail}" + (f" ({hint})" if hint else ""))


def _of_state(state: EngineState) -> Catalogue:
    """An engine's serving port names versions by a header; a model's name is for people only."""
    adapters = tuple(
        Model(
            version.key if version.display is None else f"{version.display.namespace}/{version.display.name}",
            version.rank or None,
            {HEADER_MODEL: version.key},
            version.key,
        )
        for version in state.versions
        if version.phase is VersionPhase.RESIDENT
    )
    return Catalogue(Model(state.base.name, None, {HEADER_MODEL: BASE_MODEL}), adapters)
