"""The audit log of what the operator does to engines: a line for each act, with what came of it. Called by admin.py.

The engine's own line of the act has the same `request_id`. Nothing of a body gets here, so no credential can.
"""

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from lorafleet_operator.errors import EngineRefusedError, EngineUnreachableError, NotLeadingError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Act:
    """`actor` (the leader's identity) does `action` to `object` (an adapter's uid, or uid@digest) on `engine`.

    `adapter` is the LoraAdapter's namespace and name, where the act says it.
    """

    action: str
    object: str
    engine: str
    actor: str
    adapter: str = ""
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)


@contextmanager
def audited(act: Act) -> Iterator[None]:
    """Write the line when the block has ended, however it ends."""
    begun, outcome, code = time.monotonic(), "cut off", ""
    try:
        yield
        outcome = "done"
    except EngineRefusedError as error:
        outcome, code = "refused", error.problem.code.value
        raise
    except EngineUnreachableError:
        outcome = "unreachable"
        raise
    except NotLeadingError:
        outcome = "not leading"
        raise
    finally:
        told = asdict(act) | {"outcome": outcome, "code": code, "seconds": round(time.monotonic() - begun, 3)}
        log.info("%s %s on %s: %s", act.action, act.object, act.engine, outcome, extra=told)
