"""Who signs for engines, as the operator publishes it. The watches bring it, the state polls ask for it.

Roots are only ever replaced by other roots: the last ones stay while there are none, or none that can be read.
"""

import logging
import ssl
from collections.abc import Callable

from lorafleet_contracts.names import ENGINE_CA, ENGINE_CA_KEY

log = logging.getLogger(__name__)


class EngineRoots:
    """The trusted roots; `on_new` is called with each usable bundle (PEM)."""

    def __init__(self, on_new: Callable[[str], None]) -> None:
        self._on_new = on_new
        self._context: ssl.SSLContext | None = None

    def use(self, pem: str | None) -> None:
        """Trust `pem` from now on; what is no bundle of certificates changes nothing."""
        if pem is None:
            log.warning("ConfigMap %s is gone: its last roots stay trusted", ENGINE_CA)
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=pem)
        except (ssl.SSLError, TypeError, ValueError) as error:  # TypeError: not even ASCII
            log.error("%s of ConfigMap %s is not used, as it can't be read: %s", ENGINE_CA_KEY, ENGINE_CA, error)
            return
        self._context = context
        self._on_new(pem)

    def context(self) -> ssl.SSLContext:
        """For a handshake with an engine, whose name the caller adds. Raises ConnectionError before there are roots."""
        if self._context is None:
            raise ConnectionError(
                f"nobody is known who signs for engines: the operator writes ConfigMap {ENGINE_CA} when it leads"
            )
        return self._context
