"""Patterns that name modules, as peft reads them, within limits: they come from whoever made the adapter.

Used by config.py and peft.py. Torch-free.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import regex

from lorafleet_engine.errors import UnsupportedAdapterError

MATCH_SECONDS = 0.2
"""A pattern that backtracks for longer on one module's path is refused."""

ALL_SECONDS = 3.0
"""CPU seconds that all patterns of one adapter may take together."""

MAX_LENGTH = 1_000
MAX_KEYS = 2_000
"""A published adapter has at most one key for each projection of each layer; each takes a millisecond to compile."""

ALL_LINEAR = "all-linear"
Value = TypeVar("Value")


@dataclass(slots=True)
class Patience:
    """CPU seconds that are left to an adapter's patterns, in the thread that uses them."""

    seconds: float = ALL_SECONDS

    def match(self, pattern: "regex.Pattern[str]", path: str, whole: bool = False) -> "regex.Match[str] | None":
        """`match` or `fullmatch` within the limits. Raises UnsupportedAdapterError past them."""
        began = time.thread_time()
        try:
            if self.seconds <= 0:
                raise UnsupportedAdapterError(
                    [f"the patterns of adapter_config.json take more than {ALL_SECONDS} s together; simplify them"]
                )
            look = pattern.fullmatch if whole else pattern.match
            return look(path, timeout=MATCH_SECONDS, concurrent=True)
        except TimeoutError:
            reason = f"the pattern {pattern.pattern!r} takes too long to match; simplify it"
            raise UnsupportedAdapterError([reason]) from None
        finally:
            self.seconds -= time.thread_time() - began


class ValuePattern(Generic[Value]):
    """peft's rank_pattern or alpha_pattern: the first key that names a module decides.

    A key is a regular expression for a module's whole path or for the end of it after a dot. Raises ValueError for
    more keys, longer ones or ones that are no regular expressions.
    """

    def __init__(self, values: Mapping[str, Value], patience: Patience) -> None:
        if len(values) > MAX_KEYS:
            raise ValueError(f"{len(values)} keys of a pattern are more than {MAX_KEYS}")
        self._keys = [(key, compile_pattern(rf"(.*\.)?({key})$"), value) for key, value in values.items()]
        self._patience = patience

    def value_of(self, path: str, default: Value) -> Value:
        """The value for a module."""
        return next((value for _, pattern, value in self._keys if self._patience.match(pattern, path)), default)

    def idle_keys(self, paths: Iterable[str]) -> list[str]:
        """Keys that match none of the paths."""
        known = list(paths)
        return [key for key, pattern, _ in self._keys if not any(self._patience.match(pattern, path) for path in known)]


class NameRule:
    """peft's target_modules or exclude_modules: a regular expression for whole paths, or a list of paths or their ends.

    Raises ValueError for a pattern that is too long or none.
    """

    def __init__(self, names: str | Iterable[str] | None, patience: Patience) -> None:
        self.names: tuple[str, ...] = () if names is None or isinstance(names, str) else tuple(names)
        self.pattern = compile_pattern(names) if isinstance(names, str) and names else None
        self._patience = patience

    def names_whole(self, path: str) -> bool:
        """Whether the path itself is in the list."""
        return path in self.names

    def holds(self, path: str) -> bool:
        """Whether the rule names the module."""
        if self.pattern is not None:
            return self._patience.match(self.pattern, path, whole=True) is not None
        return any(path == name or path.endswith(f".{name}") for name in self.names)


def compile_pattern(pattern: str) -> "regex.Pattern[str]":
    """Raises ValueError for one that is too long or no regular expression."""
    if len(pattern) > MAX_LENGTH:
        raise ValueError(f"a pattern of {len(pattern)} characters is longer than {MAX_LENGTH}")
    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
