"""All that we use of kopf: start-up, clean-up, log-in and events of LoraPools. They wake and decide nothing.

kopf's other handlers would put finalizers or annotations on users' objects; we use none of them.
"""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from lorafleet_contracts.names import GROUP, VERSION
from lorafleet_operator.handlers.parts import Parts
from lorafleet_operator.handlers.wakes import Wakes

Login = Callable[[], Awaitable[dict[str, Any]]]
RETRY_SECONDS = 3.0


def build_registry(wakes: Wakes, parts: Parts, login: Login) -> kopf.OperatorRegistry:
    """The handlers of one leadership. `login` gives the fields of kopf.ConnectionInfo."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**await login())

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        wakes.lead(parts)

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await wakes.stop()

    @kopf.on.event(GROUP, VERSION, "lorapools", registry=registry)
    async def pool_event(type: str | None, namespace: str | None, name: str, **_: Any) -> None:
        if type != "MODIFIED":  # our own watch tells real changes from our own status writes
            wakes.pool_touched((namespace or "", name))

    return registry


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf as we use it. It never gives up a watch, which would end the process: our own watches go on meanwhile, and
    the Lease alone says whether this process may lead."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.queueing.idle_timeout = 1
    settings.networking.error_backoffs = itertools.repeat(RETRY_SECONDS)
