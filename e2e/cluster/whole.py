"""The whole cluster: control plane and both nodes in one state folder; driven by lifecycle."""

from collections.abc import Callable
from pathlib import Path

from e2e.cluster.binaries import locate
from e2e.cluster.containerd import Containerd
from e2e.cluster.controlplane import ControlPlane, Endpoints, find_free_ports
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.network import create_node_link
from e2e.cluster.paths import Cache
from e2e.cluster.places import FIRST, PLACES, POD_RANGE
from e2e.cluster.processes import ProcessTable
from e2e.cluster.worker import Worker, folder_of

_SECURE_PORT = 6443
_CONTROLLERS = {
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
}


class Whole:
    """A cluster that is being set up: prepare everything, then start the programs in their order."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._state = cache.state
        self._processes = ProcessTable(cache.state)
        etcd, peer = find_free_ports(2)
        endpoints = Endpoints(FIRST.address, _SECURE_PORT, etcd_port=etcd, etcd_peer_port=peer)
        self._control = ControlPlane(cache, cache.state, endpoints)
        self._workers = {place: Worker(cache, place) for place in PLACES}
        self.containerd = self._workers[FIRST].containerd
        self.kubectl = Kubectl(locate(cache, "kubectl"), cache.kubeconfig)

    def prepare(self) -> None:
        """Make links, control groups, certificates and configurations; the state folder must be fresh."""
        create_node_link()
        self._control.prepare()
        for name, subject in _CONTROLLERS.items():
            self._control.write_kubeconfig(self._kubeconfig(name), self._control.authority.issue(name, subject))
        for place, worker in self._workers.items():
            folder_of(self._cache, place).mkdir(parents=True)
            for account, subject in worker.accounts.items():
                names = [f"DNS:{place.name}", f"IP:{place.address}"]
                pair = self._control.authority.issue(place.process(account), subject, names)
                self._control.write_kubeconfig(worker.kubeconfig(account), pair)
            worker.prepare(self._control.authority)

    def start_control_plane(self) -> None:
        """Start etcd, the API server, the controllers and the scheduler."""
        self._control.start(self._processes)
        self._processes.start("kube-controller-manager", self._controller_manager())
        self._processes.start("kube-scheduler", self._scheduler())

    def share_images(self, load: Callable[[Containerd], None]) -> None:
        """Have `load` bring the cluster's own images into the first store; give all others what they lack of it."""
        with self.containerd.without_kubernetes(self._processes):
            load(self.containerd)
            wanted = self.containerd.images().items()
        for place, worker in self._workers.items():
            if place == FIRST:
                continue
            if worker.containerd.root.exists():
                with worker.containerd.without_kubernetes(self._processes):
                    complete = wanted <= worker.containerd.images().items()
                if complete:
                    continue
            self.containerd.replicate(worker.containerd)

    def start_workers(self) -> None:
        """Start the nodes' programs and wait until both are Ready."""
        for worker in self._workers.values():
            worker.start()
        for worker in self._workers.values():
            worker.await_ready()

    def _controller_manager(self) -> list[str | Path]:
        authority = self._control.authority
        tokens, signer = authority.pair("service-account"), authority.pair("ca")
        return [
            locate(self._cache, "kube-controller-manager"),
            *self._client_flags("kube-controller-manager"),
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--root-ca-file={authority.certificate}",
            f"--service-account-private-key-file={tokens.key}",
            f"--cluster-signing-cert-file={signer.certificate}",
            f"--cluster-signing-key-file={signer.key}",
            "--allocate-node-cidrs=true",
            f"--cluster-cidr={POD_RANGE}",
        ]

    def _scheduler(self) -> list[str | Path]:
        return [
            locate(self._cache, "kube-scheduler"),
            *self._client_flags("kube-scheduler"),
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
        ]

    def _client_flags(self, name: str) -> list[str]:
        path = self._kubeconfig(name)
        return [f"--kubeconfig={path}", f"--authentication-kubeconfig={path}", f"--authorization-kubeconfig={path}"]

    def _kubeconfig(self, name: str) -> Path:
        return self._state / f"{name}.kubeconfig"
