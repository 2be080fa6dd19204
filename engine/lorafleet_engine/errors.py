"""The engine's errors. Each program edge translates them once: server/ to problem documents, loop.py to messages.

EngineError
├── UnsupportedModelError      the base model's config asks for something this engine does not do (a list of reasons)
├── BrokenModelError           the base model's files are missing, damaged or of other shapes than its config says
├── UnsupportedAdapterError    an adapter that would be computed wrongly here (a list of reasons)
├── BrokenAdapterError         an adapter's files are missing, damaged or contradict each other or the base (reasons)
├── ParityError                a merged adapter does not answer as it does unmerged, with the figures
├── DoesNotFitError            not enough memory of some kind, with the numbers
├── PeerLostError              another process of a tensor-parallel engine is gone, with its last words
├── SettingsError              an environment variable is missing or wrong: the process ends at once
├── ChildDiedError             the loop process is gone: the engine ends and the container restarts
└── JobError                   a job of the loader, or a load, failed; carries the code of the problem document
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the compute rooms run where there is no pydantic
    from lorafleet_contracts.admin import ProblemCode


MAX_REASON = 400
MAX_MESSAGE = 4_000


def readable(text: str, limit: int = MAX_REASON) -> str:
    """Text that may quote a stranger's file, fit for a log, a wire and a condition: one line of bounded length."""
    line = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[: limit + 1])
    return line if len(line) <= limit else f"{line[:limit]}..."


class EngineError(Exception):
    """Anything the engine raises on purpose."""


class ReasonsError(EngineError):
    """An error with one or more reasons, each a sentence for the person who can change the cause."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(readable(reason) for reason in reasons)
        super().__init__("; ".join(self.reasons))


class UnsupportedModelError(ReasonsError):
    """The base model's config asks for something this engine does not do."""


class BrokenModelError(ReasonsError):
    """The base model's files are missing, damaged or contradict its config."""


class UnsupportedAdapterError(ReasonsError):
    """The adapter uses something that this engine would compute wrongly."""


class BrokenAdapterError(ReasonsError):
    """The adapter's files are missing, damaged, or contradict each other or the base model."""


class ParityError(EngineError):
    """Merged weights are farther from the model than rounding explains, or cannot be compared."""


class DoesNotFitError(EngineError):
    """`needed` of something is more than `free`; `what` names it with its unit."""

    def __init__(self, what: str, needed: int, free: int) -> None:
        super().__init__(f"{what}: {needed} needed, {free} free")
        self.what = what
        self.needed = needed
        self.free = free


class PeerLostError(EngineError):
    """Another process of a tensor-parallel engine has ended, or does not come: the engine cannot go on."""


class SettingsError(EngineError):
    """The environment does not describe a legal engine. The message names the variable."""


class ChildDiedError(EngineError):
    """A process that the engine cannot go on without has ended; the engine exits with `status`."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class JobError(EngineError):
    """A fetch, inspection, packing or load that failed for a reason its owner can act on."""

    def __init__(self, code: "ProblemCode", message: str, reasons: tuple[str, ...] = ()) -> None:
        self.code = code
        self.message = readable(message, MAX_MESSAGE)
        self.reasons = reasons
        super().__init__(self.message)
