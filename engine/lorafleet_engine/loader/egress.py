"""The one way out of the loader: an httpx client that only connects to addresses a source may have.

Called by the folders of http, s3, hf and oci sources. A name is resolved here and the very address that was judged is
connected to, so that no second answer of a name server can lead elsewhere.
"""

import ipaddress
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

import certifi
import httpcore
import httpx

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError

TIMEOUT = httpx.Timeout(30.0, connect=10.0)
CLUSTER_SUFFIXES = (".svc", ".cluster.local")
METADATA = frozenset(
    ipaddress.ip_address(each)
    for each in ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)
"""Where clouds hand out a machine's own credentials; some of these addresses look like any other."""
PRIVATE = tuple(
    ipaddress.ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


@dataclass(frozen=True, slots=True)
class Reach:
    """Which addresses may be connected to for a source whose own server is `host` at `port`.

    Public ones always; private ones for a host that only a cluster's name server knows (`assets`, `x.y.svc`) and, with
    `private`, for all; any other only where the source names the address itself, so that its owner has allowed it.
    """

    host: str
    port: int
    private: bool

    def refuse(self, host: str, port: int, address: Address) -> str | None:
        """Why `address`, which `host` resolves to, may not be connected to, or None."""
        own = (host.lower(), port) == (self.host.lower(), self.port)
        if own and _literal(host) == address:
            return None
        address = _unwrapped(address)
        if address in METADATA or address.is_link_local:
            return f"{host} is {address}, a link-local or metadata address, which no source may have"
        if _is_public(address):
            return None
        if not any(address in network for network in PRIVATE):
            return f"{host} is {address}, which is no public address; list the address itself in sources.allow"
        if self.private or (own and _is_of_cluster(host)):
            return None
        return f"{host} is {address}, an address of a private network; its rule in sources.allow can say private: true"


class GuardedBackend(httpcore.NetworkBackend):
    """Connects where `reach` allows it. Raises JobError for any other address."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._plain = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.NetworkStream:
        """Resolve once, judge every address, connect to one of those. Raises JobError or httpcore.ConnectError."""
        addresses = _resolve(host, port)
        for address in addresses:
            refusal = self._reach.refuse(host, port, address)
            if refusal:
                raise JobError(ProblemCode.SOURCE_FORBIDDEN, refusal)
        failure: Exception | None = None
        for address in addresses:
            try:
                return self._plain.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore.ConnectError(f"{host} has no address")

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[SocketOption] | None = None
    ) -> httpcore.NetworkStream:
        """No source is behind a socket of this machine."""
        raise JobError(ProblemCode.SOURCE_FORBIDDEN, "a source is no local socket")


class _GuardedTransport(httpx.HTTPTransport):
    def __init__(self, reach: Reach, trusted: ssl.SSLContext) -> None:
        super().__init__(verify=trusted, trust_env=False)
        self._pool.close()
        # httpx has no argument for it; tests/engine/loader/test_egress.py fails where this has no effect.
        self._pool = httpcore.ConnectionPool(ssl_context=trusted, network_backend=GuardedBackend(reach))


def reach_of(url: str, private: bool) -> Reach:
    """The reach of a source whose server has this URL; its port and host are legal (sources.py)."""
    parts = urlsplit(url)
    return Reach(parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443), private)


def open_client(reach: Reach, ca_bundle: str = "") -> httpx.Client:
    """A client that follows no redirect, heeds no proxy settings and connects within `reach`. Raises JobError."""
    trusted = ssl.create_default_context(cafile=certifi.where())
    if ca_bundle:
        try:
            trusted.load_verify_locations(cadata=ca_bundle)
        except (ssl.SSLError, ValueError) as error:
            raise JobError(
                ProblemCode.INVALID_REQUEST, f"the pool's caBundle holds no PEM certificates: {error}"
            ) from error
    return httpx.Client(
        transport=_GuardedTransport(reach, trusted), follow_redirects=False, timeout=TIMEOUT, trust_env=False
    )


def _resolve(host: str, port: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"the name {host} cannot be resolved: {error}") from error
    # A scope (`%eth0`) is of a link-local address, which is refused anyway.
    texts = dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found)
    return [ipaddress.ip_address(text) for text in texts]


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_of_cluster(host: str) -> bool:
    name = host.lower().rstrip(".")
    return _literal(host) is None and ("." not in name or name.endswith(CLUSTER_SUFFIXES))


def _is_public(address: Address) -> bool:
    odd = address.is_multicast or address.is_reserved or getattr(address, "is_site_local", False)
    return address.is_global and not odd


def _unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 address that only carries it."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if inner is None and address in TRANSLATED:
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address
