"""What an endpoint serves: its base model and its adapters, most popular first. Used by session.py."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lorafleet_contracts.names import HEADER_MODEL


class ModelsError(Exception):
    """The models file, or what the endpoint lists, cannot be used; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Model:
    """One name that requests may carry. `headers` go along with them; `rank` None = not known.

    `version` ({uid}@{digest}) and `uri` are those of an adapter on an engine of ours, so that it can be evicted.
    """

    id: str
    rank: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    uri: str = ""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The base (None: no arm without adapters can be measured) and the adapters, most popular first."""

    base: Model | None
    adapters: tuple[Model, ...]

    def chosen(self, count: int | None) -> "Catalogue":
        """The first `count` adapters. Raises ModelsError when there are none."""
        if not self.adapters:
            raise ModelsError(
                "no adapters to ask for: the endpoint lists none with a `parent`; name them in a file given as --models"
            )
        return replace(self, adapters=self.adapters[:count])


def read_models(path: Path) -> Catalogue:
    """A JSON file: a list of adapters, or {"base": ..., "adapters": [...]}; each a name or an object of Model's fields.

    Raises ModelsError naming what is wrong.
    """
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelsError(f"{path}: {error}") from error
    if isinstance(raw, list):
        raw = {"adapters": raw}
    if not isinstance(raw, dict) or not isinstance(raw.get("adapters"), list):
        raise ModelsError(f'{path}: must be a list of adapters or {{"base": ..., "adapters": [...]}}')
    base = raw.get("base")
    return Catalogue(
        base=None if base is None else _model(path, "base", base),
        adapters=tuple(_model(path, f"adapters[{number}]", each) for number, each in enumerate(raw["adapters"])),
    )


def listed_models(answer: Mapping[str, Any], base: str | None) -> Catalogue:
    """What `GET /v1/models` says: entries with a `parent` are adapters of it; `base` overrides which one is the base.

    Raises ModelsError when the answer is no list, or several bases are listed and none was chosen.
    """
    entries = answer.get("data")
    if not isinstance(entries, list) or not all(isinstance(each, dict) and each.get("id") for each in entries):
        raise ModelsError("GET /v1/models did not answer with a list of models; name them in a file given as --models")
    parents = {each["parent"] for each in entries if each.get("parent")}
    bases = sorted(parents) or sorted(each["id"] for each in entries)
    if base is None and len(bases) > 1:
        raise ModelsError(f"the endpoint has several base models: choose one with --base ({', '.join(bases[:5])})")
    chosen = base if base is not None else bases[0] if bases else None
    adapters = tuple(Model(each["id"]) for each in entries if each.get("parent") and each["parent"] == chosen)
    return Catalogue(None if chosen is None else Model(chosen), adapters)


def _model(path: Path, where: str, raw: Any) -> Model:
    if isinstance(raw, str):
        return Model(raw)
    if not isinstance(raw, dict) or not isinstance(raw.get("id"), str):
        raise ModelsError(f"{path}: {where} must be a name, or an object with an `id`")
    unknown = set(raw) - {"id", "rank", "headers", "version", "uri"}
    if unknown:
        raise ModelsError(f"{path}: {where} has unknown fields: {', '.join(sorted(unknown))}")
    version, headers = str(raw.get("version", "")), dict(raw.get("headers", {}))
    if version:
        headers.setdefault(HEADER_MODEL, version)
    rank = raw.get("rank")
    return Model(raw["id"], None if rank is None else int(rank), headers, version, str(raw.get("uri", "")))
