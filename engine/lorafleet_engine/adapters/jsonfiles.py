"""JSON that a stranger wrote: an object whose text has one meaning only. Used by config.py and files.py. Torch-free."""

import json
from typing import Any, NoReturn


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Raises ValueError for anything but one object, for a key that is there twice, for NaN and the infinities, for
    text that is no valid Unicode and for nesting beyond the interpreter's depth."""
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        json.dumps(found, ensure_ascii=False).encode()  # an escape such as \ud800 alone is no character
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
