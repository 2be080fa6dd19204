"""Waiting for something on a cluster to become true; used by the demo and the e2e tests."""

import time
from collections.abc import Callable


class NotInTimeError(AssertionError):
    """What was waited for did not come; the message says what was seen last."""


def wait_until(true: Callable[[], object], *, seconds: float, what: str, pause: float = 0.2) -> float:
    """Call `true` until it gives something true and return how many seconds that took. Raises NotInTimeError."""
    begun = time.monotonic()
    while True:
        seen = true()
        waited = time.monotonic() - begun
        if seen:
            return waited
        if waited > seconds:
            raise NotInTimeError(f"not after {seconds:.0f} s: {what} (last seen: {seen!r})")
        time.sleep(pause)
