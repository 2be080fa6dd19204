"""What the three ports speak TLS with: a folder with `tls.crt` and `tls.key`, read again when a file changes.

Made once by engine.py where a folder is told, used by ports.py; a Secret mount renews it. No readable pair at the start
ends the start; later the pair that was read last goes on.
"""

import logging
import os
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from lorafleet_contracts.admin import CertificateState
from lorafleet_engine.errors import SettingsError

logger = logging.getLogger(__name__)
CHECK_SECONDS = 1.0
CERTIFICATE, KEY = "tls.crt", "tls.key"


@dataclass(frozen=True, slots=True)
class _Pair:
    context: ssl.SSLContext
    fingerprint: str
    expires: float


class TlsFolder(Collector):
    """The pair that new connections are shaken hands with. Those that exist keep theirs.

    Raises SettingsError where the folder holds no pair.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._looked = clock()
        self._problem: str | None = None
        self._stamp = _stamp(folder)
        try:
            self._pair = _read(folder)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"LORAFLEET_TLS_DIR: no certificate and key in {CERTIFICATE} and {KEY} of {folder}: {error}"
            ) from error
        self.context = _new_context()
        """Goes to the servers. It has no certificate: each handshake takes the present pair's context."""
        self.context.sni_callback = self._take_present

    @property
    def state(self) -> CertificateState:
        """The certificate that is served now, and what is wrong with the files, if anything."""
        self._refresh()
        return CertificateState(fingerprint=self._pair.fingerprint, problem=self._problem)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """When the served certificate expires, and whether the files hold one that can't be taken."""
        self._refresh()
        yield GaugeMetricFamily(
            "lorafleet_tls_expires_timestamp_seconds",
            "When the certificate that the ports serve expires",
            value=self._pair.expires,
        )
        yield GaugeMetricFamily(
            "lorafleet_tls_refused",
            "1 while the mounted pair is broken and the one before is served",
            value=float(self._problem is not None),
        )

    def _take_present(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        self._refresh()
        connection.context = self._pair.context

    def _refresh(self) -> None:
        if self._clock() - self._looked < CHECK_SECONDS:
            return
        self._looked = self._clock()
        stamp = _stamp(self._folder)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._pair, self._problem = _read(self._folder), None
        except (OSError, ValueError) as error:
            self._problem = f"the certificate and key in {self._folder} are of no use: {error}"
            logger.error("%s; the ports go on with the ones before, until %s", self._problem, self._until())
        else:
            logger.info("the ports take a new certificate, valid until %s", self._until())

    def _until(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._pair.expires))


def _stamp(folder: Path) -> tuple[tuple[int, int, int] | None, ...]:
    return tuple(_stamp_of(folder / name) for name in (CERTIFICATE, KEY))


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(folder: Path) -> _Pair:
    """Raises OSError (ssl.SSLError is one) or ValueError where certificate and key are no pair."""
    from cryptography import x509  # late: without TLS there need be no cryptography
    from cryptography.hazmat.primitives.hashes import SHA256

    context = _new_context()
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    leaf = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
    return _Pair(context, leaf.fingerprint(SHA256()).hex(), leaf.not_valid_after_utc.timestamp())


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
