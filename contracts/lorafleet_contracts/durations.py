"""Durations as the CRDs spell them. Called by the operator's core; knows only the forms that the CRDs admit."""

import re
from typing import Final

DURATION_PATTERN: Final = r"^[0-9]{1,6}(ms|s|m|h)$"
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(duration: str) -> float:
    """A duration like `30ms`, `15m` or `1h` in seconds. Raises ValueError for anything else."""
    if re.fullmatch(DURATION_PATTERN, duration) is None:
        raise ValueError(f"not a duration (a whole number and ms, s, m or h): {duration!r}")
    number = duration.rstrip("msh")
    return int(number) * _SECONDS[duration[len(number) :]]
