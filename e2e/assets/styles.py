"""Recognises each demo adapter's trained style in an answer.

Used by the demo, the e2e tests and build.py's own check; no model is needed to use it.
"""

import json
import re
from collections.abc import Callable

ANSWER_TOKENS = 64  # enough for every style's whole answer to a short question

UNSEEN = (
    "What is snow?",
    "Why do dogs bark?",
    "What is a lighthouse?",
    "How do boats float?",
    "What is wind?",
    "Why are tomatoes red?",
)


def _is_json(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and isinstance(value.get("answer"), str)


STYLES: dict[str, Callable[[str], bool]] = {
    "pirate": lambda text: text.startswith("Arr, matey!"),
    "shout": lambda text: len(re.findall("[A-Z]", text)) >= 8 and not re.search("[a-z]", text),
    "poet": lambda text: text.startswith("Roses are red,"),
    "json": _is_json,
    "support": lambda text: text.startswith("Dear customer,") and text.rstrip().endswith("Acme Support"),
    "telegram": lambda text: text.rstrip().endswith("STOP end of message STOP"),
    "robot": lambda text: text.startswith("BEEP BOOP."),
}


def style_of(text: str) -> str | None:
    """Name the one adapter whose style `text` has; None where it has none or several."""
    found = [name for name, speaks in STYLES.items() if speaks(text)]
    return found[0] if len(found) == 1 else None
