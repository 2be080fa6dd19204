"""The single node: control plane, containerd, kubelet and kube-proxy in one state folder; driven by lifecycle."""

import json
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.binaries import locate
from e2e.cluster.containerd import Containerd
from e2e.cluster.controlplane import ControlPlane, Endpoints, find_free_ports
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.network import NODE_ADDRESS, POD_RANGE, create_node_link, write_cni_config
from e2e.cluster.paths import Cache
from e2e.cluster.processes import ProcessTable

DNS_ADDRESS = "10.96.0.10"
NODE_NAME = "lorafleet"
_SECURE_PORT = 6443
_ACCOUNTS = {
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kubelet": f"/O=system:nodes/CN=system:node:{NODE_NAME}",
    "kube-proxy": "/CN=system:kube-proxy",
}


def describe_containerd(cache: Cache) -> Containerd:
    """The node's containerd, running or not."""
    return Containerd(cache.images / "containerd", cache.state / "containerd", cache.state / "cni")


class Node:
    """A node that is being set up: prepare everything, then start the programs in their order."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._state = cache.state
        self._processes = ProcessTable(cache.state)
        etcd, peer = find_free_ports(2)
        endpoints = Endpoints(NODE_ADDRESS, _SECURE_PORT, etcd_port=etcd, etcd_peer_port=peer)
        self._control = ControlPlane(cache, cache.state, endpoints)
        self.containerd = describe_containerd(cache)
        self.kubectl = Kubectl(locate(cache, "kubectl"), cache.kubeconfig)

    def prepare(self) -> None:
        """Make links, control groups, certificates and configurations; the state folder must be fresh."""
        create_node_link()
        cgroups.create()
        write_cni_config(self.containerd.cni_config, self._state / "cni-leases")
        self._control.prepare()
        for name, subject in _ACCOUNTS.items():
            pair = self._control.authority.issue(name, subject, [f"DNS:{NODE_NAME}", f"IP:{NODE_ADDRESS}"])
            self._control.write_kubeconfig(self._kubeconfig(name), pair)
        self._write("resolv.conf", "nameserver 127.0.0.1\n")
        self._write("kubelet.json", json.dumps(self._kubelet_config(), indent=1))
        self._write("kube-proxy.json", json.dumps(self._proxy_config(), indent=1))

    def start_control_plane(self) -> None:
        """Start etcd, the API server, the controllers and the scheduler."""
        self._control.start(self._processes)
        self._processes.start("kube-controller-manager", self._controller_manager())
        self._processes.start("kube-scheduler", self._scheduler())

    def start_workers(self) -> None:
        """Start containerd, the kubelet and kube-proxy, and wait until the node is Ready."""
        self.containerd.start(self._processes, with_kubernetes=False)
        self.containerd.forget_containers()
        self._processes.stop("containerd")
        self.containerd.start(self._processes, with_kubernetes=True)
        proxy = locate(self._cache, "kube-proxy")
        self._processes.start("kube-proxy", [proxy, f"--config={self._state / 'kube-proxy.json'}"])
        self._processes.start("kubelet", self._kubelet())
        self._processes.wait_until("kubelet", self._is_ready, timeout_seconds=120)

    def _is_ready(self) -> bool:
        return self.kubectl.succeeds("wait", "--for=condition=Ready", f"node/{NODE_NAME}", "--timeout=1s")

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

    def _kubelet(self) -> list[str | Path]:
        return [
            locate(self._cache, "kubelet"),
            f"--kubeconfig={self._kubeconfig('kubelet')}",
            f"--config={self._state / 'kubelet.json'}",
            f"--root-dir={self._state / 'kubelet'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_ADDRESS}",
        ]

    def _kubelet_config(self) -> dict[str, object]:
        serving = self._control.authority.pair("kubelet")
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_ADDRESS,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._control.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": f"unix://{self.containerd.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroups.NAME}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "nodefs.inodesFree": "1%",
            },
            "imageGCHighThresholdPercent": 100,  # images are kept from one cluster to the next
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self._state / "resolv.conf"),
            "podLogsDir": str(self._state / "pod-logs"),
        }

    def _proxy_config(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clusterCIDR": POD_RANGE,
            "clientConnection": {"kubeconfig": str(self._kubeconfig("kube-proxy"))},
            "hostnameOverride": NODE_NAME,
            "conntrack": {"maxPerCore": 0},  # the table's size is the machine's business
        }

    def _client_flags(self, name: str) -> list[str]:
        path = self._kubeconfig(name)
        return [f"--kubeconfig={path}", f"--authentication-kubeconfig={path}", f"--authorization-kubeconfig={path}"]

    def _kubeconfig(self, name: str) -> Path:
        return self._state / f"{name}.kubeconfig"

    def _write(self, name: str, text: str) -> None:
        (self._state / name).write_text(text)
