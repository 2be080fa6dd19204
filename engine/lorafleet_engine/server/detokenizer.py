"""Turns tokens into text as they come, so that the pieces joined are the text of the whole answer. Used by choices.py.

A character may span tokens: what could still change is held back. Where each token stands for bytes whatever its
neighbours are, the bytes are decoded as they come. Elsewhere a window of recent tokens is decoded each time, because a
token's text may depend on its neighbours.
"""

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from lorafleet_engine.server.tokenizer import BaseTokenizer

REPLACEMENT = "\ufffd"
MAX_HELD = 3  # an unfinished UTF-8 character has at most three bytes, each of which may decode to one U+FFFD
MAX_WINDOW = 64


class Detokenizer(Protocol):
    """State of one answer."""

    def push(self, token_id: int) -> str:
        """The text that this token makes certain."""
        ...

    def flush(self) -> str:
        """What is left at the end of the answer."""
        ...


def make_detokenizer(tokenizer: BaseTokenizer) -> Detokenizer:
    """The cheapest one that is exact for this tokenizer."""
    pieces = tokenizer.text_bytes
    return WindowDetokenizer(tokenizer.decode) if pieces is None else ByteDetokenizer(pieces)


class ByteDetokenizer:
    """`pieces` are the bytes of each token; the text is their sum as UTF-8."""

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """See Detokenizer."""
        return self._decoder.decode(self._pieces[token_id])

    def flush(self) -> str:
        """See Detokenizer."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """`decode` maps ids to text."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._clean = 0  # tokens of the window that were there at the last complete character: context only
        self._sent = 0  # characters of the window's text that are already out

    def push(self, token_id: int) -> str:
        """See Detokenizer."""
        self._window.append(token_id)
        text = self._decode(self._window)
        held = 0 if len(self._window) > MAX_WINDOW else _trailing(text)
        fresh = text[self._sent : len(text) - held]
        self._sent = max(self._sent, len(text) - held)
        if text and not held:
            self._move_window()
        return fresh

    def flush(self) -> str:
        """See Detokenizer."""
        text = self._decode(self._window)
        rest = text[self._sent :]
        self._sent = len(text)
        return rest

    def _move_window(self) -> None:
        self._window = self._window[self._clean :]
        self._clean = len(self._window)
        self._sent = len(self._decode(self._window))


def _trailing(text: str) -> int:
    return min(MAX_HELD, len(text) - len(text.rstrip(REPLACEMENT)))
