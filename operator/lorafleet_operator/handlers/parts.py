"""What the tasks work with, wired once by main.py. Holds no behaviour."""

from collections.abc import Callable
from dataclasses import dataclass

from lorafleet_operator.core.port_keys import PortKeys
from lorafleet_operator.shell.admin import EngineAdmin
from lorafleet_operator.shell.engines import EngineLinks
from lorafleet_operator.shell.execute import Executor
from lorafleet_operator.shell.metrics import Metrics
from lorafleet_operator.shell.observe import Observer, TlsOf
from lorafleet_operator.shell.source_secrets import SourceSecrets
from lorafleet_operator.shell.statuses import StatusDesk
from lorafleet_operator.shell.watches import Watches


@dataclass(frozen=True, slots=True)
class Parts:
    """The shell, ready to use. `keys` gives the port keys as they were read last."""

    watches: Watches
    links: EngineLinks
    observer: Observer
    executor: Executor
    desk: StatusDesk
    admin: EngineAdmin
    secrets: SourceSecrets
    keys: Callable[[], PortKeys]
    tls_of: TlsOf
    metrics: Metrics
