"""The base model's tokenizer: text to ids, ids to text, and the bytes of single tokens. Used by the serving code.

Wraps the `tokenizers` library; holds the only knowledge of how a vocabulary entry spells bytes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Self

from tokenizers import AddedToken, Tokenizer

_BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_SPACE_MARK = "\u2581"


class BaseTokenizer:
    """Immutable after construction."""

    def __init__(self, tokenizer: Tokenizer, special_tokens: dict[str, str]) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._added: dict[int, AddedToken] = tokenizer.get_added_tokens_decoder()
        decoder = json.loads(tokenizer.to_str()).get("decoder")
        self._byte_level = "ByteLevel" in json.dumps(decoder)
        plain = isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"
        self.text_bytes: Mapping[int, bytes] | None = _TextBytes(self) if plain else None
        """What each token adds to a decoded text, where that does not depend on other tokens; special ones nothing."""
        self.special_tokens = special_tokens

    @classmethod
    def load(cls, model_dir: Path) -> Self:
        """Read tokenizer.json and the names of its special tokens. Raises OSError or ValueError."""
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        return cls(tokenizer, read_special_tokens(model_dir))

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Token ids of a text."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out, incomplete characters as U+FFFD."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def id_of(self, token: str) -> int | None:
        """Id of a vocabulary entry."""
        return self._tokenizer.token_to_id(token)

    @property
    def eos_id(self) -> int | None:
        """Id of the tokenizer's own end token, if it names one."""
        name = self.special_tokens.get("eos_token")
        return None if name is None else self.id_of(name)

    def decoded_bytes(self, token_id: int) -> bytes:
        """What a ByteLevel decoder makes of one token, before the bytes become text."""
        added = self._added.get(token_id)
        entry = self._tokenizer.id_to_token(token_id) if added is None else added.content
        if entry is None or (added is not None and added.special):
            return b""
        table = _byte_level_table()
        return bytes(table[char] for char in entry) if all(char in table for char in entry) else entry.encode()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for (its name, for a special token)."""
        if token_id in self._added:
            return self._added[token_id].content.encode()
        entry = self._tokenizer.id_to_token(token_id)
        if entry is None:
            return b""
        if self._byte_level:
            table = _byte_level_table()
            return bytes(table[char] for char in entry if char in table)
        if match := _BYTE_TOKEN.match(entry):
            return bytes([int(match.group(1), 16)])
        return entry.replace(_SPACE_MARK, " ").encode()


class _TextBytes(dict[int, bytes]):
    """Bytes of a token's text under a ByteLevel decoder, worked out when first asked for."""

    def __init__(self, tokenizer: BaseTokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = found = self._tokenizer.decoded_bytes(token_id)
        return found


def read_special_tokens(model_dir: Path) -> dict[str, str]:
    """Special tokens by role (bos_token, eos_token, ...) from the published config files."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = model_dir / name
        if not path.is_file():
            continue
        for role, value in json.loads(path.read_text()).items():
            content = value.get("content") if isinstance(value, dict) else value
            if role.endswith("_token") and isinstance(content, str):
                found[role] = content
    return found


@cache
def _byte_level_table() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes, reversed (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(0x100 + offset): byte for offset, byte in enumerate(hidden)}
