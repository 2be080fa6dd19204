"""etcd and kube-apiserver: the two programs that the light API server and the whole node have in common."""

import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.binaries import locate
from e2e.cluster.certificates import Authority, KeyPair
from e2e.cluster.kubeconfig import write_kubeconfig
from e2e.cluster.paths import Cache
from e2e.cluster.processes import ProcessTable

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses and ports of one control plane; the API server listens on `address` alone, etcd on the loopback."""

    address: str
    secure_port: int
    etcd_port: int
    etcd_peer_port: int

    @property
    def url(self) -> str:
        """The API server's URL."""
        return f"https://{self.address}:{self.secure_port}"

    @property
    def etcd_url(self) -> str:
        """etcd's client URL."""
        return f"http://127.0.0.1:{self.etcd_port}"


class ControlPlane:
    """etcd and kube-apiserver in one state folder, with an authority and an administrator."""

    def __init__(self, cache: Cache, state: Path, endpoints: Endpoints) -> None:
        self._cache = cache
        self._state = state
        self._endpoints = endpoints
        self.authority = Authority(state / "pki")
        self.kubeconfig = state / "admin.kubeconfig"

    def prepare(self) -> None:
        """Make new certificates (addresses may have changed since the last ones) and the administrator's kubeconfig."""
        self.authority.create()
        service_names = [f"kubernetes{suffix}" for suffix in ("", ".default", ".default.svc")]
        names = [f"DNS:{name}" for name in ("localhost", *service_names)]
        addresses = [f"IP:{address}" for address in ("127.0.0.1", SERVICE_ADDRESS, self._endpoints.address)]
        self.authority.issue("apiserver", "/CN=kube-apiserver", [*names, *addresses])
        self.authority.issue("admin", "/O=system:masters/CN=admin")
        self.authority.issue("front-proxy", "/CN=front-proxy-client")
        self.authority.issue("apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet-client")
        self.authority.issue_token_key("service-account")
        self.write_kubeconfig(self.kubeconfig, self.authority.pair("admin"))

    def write_kubeconfig(self, path: Path, client: KeyPair) -> None:
        """Write a kubeconfig with which `client` reaches this API server from this machine."""
        write_kubeconfig(path, self._endpoints.url, self.authority.certificate, client)

    def start(self, processes: ProcessTable, extra: Sequence[str] = (), *, die_with_parent: bool = False) -> None:
        """Start both and wait until the API server is ready. `extra` are more flags for it. Raises NotReady."""
        etcd, apiserver = locate(self._cache, "etcd"), locate(self._cache, "kube-apiserver")
        processes.start("etcd", [etcd, *self._etcd_flags()], die_with_parent=die_with_parent)
        processes.start(
            "kube-apiserver", [apiserver, *self._apiserver_flags(), *extra], die_with_parent=die_with_parent
        )
        processes.wait_until("kube-apiserver", self.is_ready, timeout_seconds=90)

    def is_ready(self) -> bool:
        """Whether the API server answers /readyz to its administrator."""
        admin = self.authority.pair("admin")
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(admin.certificate, admin.key)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(f"{self._endpoints.url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False

    def _etcd_flags(self) -> list[str]:
        peer = f"http://127.0.0.1:{self._endpoints.etcd_peer_port}"
        return [
            f"--data-dir={self._state / 'etcd'}",
            f"--listen-client-urls={self._endpoints.etcd_url}",
            f"--advertise-client-urls={self._endpoints.etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # nothing in here outlives the machine
            "--log-level=warn",
        ]

    def _apiserver_flags(self) -> list[str]:
        ca = self.authority.certificate
        server, kubelet, front, tokens = map(
            self.authority.pair, ("apiserver", "apiserver-kubelet", "front-proxy", "service-account")
        )
        return [
            f"--etcd-servers={self._endpoints.etcd_url}",
            f"--bind-address={self._endpoints.address}",
            f"--advertise-address={self._endpoints.address}",
            f"--secure-port={self._endpoints.secure_port}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--client-ca-file={ca}",
            f"--tls-cert-file={server.certificate}",
            f"--tls-private-key-file={server.key}",
            f"--service-account-key-file={tokens.certificate}",
            f"--service-account-signing-key-file={tokens.key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            f"--kubelet-certificate-authority={ca}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--proxy-client-cert-file={front.certificate}",
            f"--proxy-client-key-file={front.key}",
            f"--requestheader-client-ca-file={ca}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        ]


def find_free_ports(count: int) -> list[int]:
    """Distinct TCP ports that were free on the loopback a moment ago."""
    with ExitStack() as open_sockets:
        ports = []
        for _ in range(count):
            listener = open_sockets.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(int(listener.getsockname()[1]))
        return ports
