"""One node's programs: containerd, kubelet, kube-proxy and kube-router in its network; driven by whole and outages."""

import json
from datetime import UTC, datetime
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.binaries import locate
from e2e.cluster.certificates import Authority
from e2e.cluster.containerd import Containerd
from e2e.cluster.controlplane import SERVICE_RANGE
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.network import write_cni_config
from e2e.cluster.paths import Cache
from e2e.cluster.places import POD_RANGE, Place
from e2e.cluster.processes import ProcessTable

DNS_ADDRESS = "10.96.0.10"
GPUS = 2
"""How many `nvidia.com/gpu` each node claims to have, so that scheduling by them can be tested without one."""
_GPU_PATH = "/status/capacity/nvidia.com~1gpu"


def describe_containerd(cache: Cache, place: Place) -> Containerd:
    """A node's containerd, running or not."""
    state = folder_of(cache, place)
    name = place.process("containerd")
    return Containerd(cache.images / name, state / "containerd", state / "cni", name, tuple(place.inside))


def folder_of(cache: Cache, place: Place) -> Path:
    """Where a node keeps everything of its own."""
    return cache.state / "nodes" / place.name


class Worker:
    """One node: prepare it once, then start it, stop it, and start it again."""

    def __init__(self, cache: Cache, place: Place) -> None:
        self._cache = cache
        self._place = place
        self._folder = folder_of(cache, place)
        self._processes = ProcessTable(cache.state)
        self._kubectl = Kubectl(locate(cache, "kubectl"), cache.kubeconfig)
        self._begun = datetime.min.replace(tzinfo=UTC)
        self.containerd = describe_containerd(cache, place)

    @property
    def accounts(self) -> dict[str, str]:
        """Its programs that talk to the API server, with the subject of each one's certificate."""
        return {
            "kubelet": f"/O=system:nodes/CN=system:node:{self._place.name}",
            "kube-proxy": "/CN=system:kube-proxy",
            "kube-router": "/O=system:masters/CN=kube-router",
        }

    def kubeconfig(self, account: str) -> Path:
        """Where the kubeconfig of one of `accounts` lies; the control plane writes it."""
        return self._folder / f"{account}.kubeconfig"

    def prepare(self, authority: Authority) -> None:
        """Make its control group and configurations; `authority` has issued a pair named after its kubelet."""
        cgroups.create(self._place.group)
        write_cni_config(self.containerd.cni_config, self._folder / "cni-leases", self._place.pod_range)
        self._write("resolv.conf", "nameserver 127.0.0.1\n")
        self._write("kubelet.json", json.dumps(self._kubelet_config(authority), indent=1))
        self._write("kube-proxy.json", json.dumps(self._proxy_config(), indent=1))

    def start(self) -> None:
        """Start all its programs but kube-router; returns before the node is Ready."""
        self._begun = datetime.now(UTC).replace(microsecond=0)
        self.containerd.start(self._processes, with_kubernetes=True)
        proxy = locate(self._cache, "kube-proxy")
        self._start("kube-proxy", [proxy, f"--config={self._folder / 'kube-proxy.json'}"])
        self._start("kubelet", self._kubelet())

    def await_ready(self) -> None:
        """Wait until the node is Ready, give it GPUs, and begin to enforce NetworkPolicies on it. Raises NotReady."""
        self._processes.wait_until(self._place.process("kubelet"), self._is_ready, timeout_seconds=120)
        gpus = [{"op": "add", "path": _GPU_PATH, "value": str(GPUS)}]
        node = self._place.name
        self._kubectl.run("patch", "node", node, "--subresource=status", "--type=json", "--patch", json.dumps(gpus))
        self._start("kube-router", self._router())  # asks for its node at once, and ends where there is none

    def stop(self) -> None:
        """End its programs and kill its pods at once, as when a machine loses power; what they wrote stays."""
        for program in ("kubelet", "kube-proxy", "kube-router"):
            self._processes.stop(self._place.process(program), grace_seconds=0)
        cgroups.end_members(self._place.group)
        self._processes.stop(self.containerd.process, grace_seconds=0)

    def _start(self, program: str, command: list[str | Path]) -> None:
        self._processes.start(self._place.process(program), [*self._place.inside, *command])

    def _is_ready(self) -> bool:
        """Whether the kubelet that was started last, and not the one before, says so.

        One that ended is started again, as systemd does: it gives up where containerd isn't quite there yet.
        """
        if not self._processes.alive(self._place.process("kubelet")):
            self._start("kubelet", self._kubelet())
        found = json.loads(self._kubectl.run("get", "nodes", "--output=json"))["items"]
        ready = [
            condition
            for node in found
            for condition in node["status"].get("conditions", [])
            if node["metadata"]["name"] == self._place.name and condition["type"] == "Ready"
        ]
        return any(
            each["status"] == "True" and datetime.fromisoformat(each["lastHeartbeatTime"]) >= self._begun
            for each in ready
        )

    def _router(self) -> list[str | Path]:
        """kube-router for NetworkPolicies alone; it would take the machine's name for the node's."""
        router = locate(self._cache, "kube-router")
        duties = ("--run-firewall=true", "--run-router=false", "--run-service-proxy=false", "--run-loadbalancer=false")
        return [
            "env",
            f"NODE_NAME={self._place.name}",
            router,
            f"--kubeconfig={self.kubeconfig('kube-router')}",
            *duties,
            "--enable-cni=false",
            "--enable-ipv6=false",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
        ]

    def _kubelet(self) -> list[str | Path]:
        return [
            locate(self._cache, "kubelet"),
            f"--kubeconfig={self.kubeconfig('kubelet')}",
            f"--config={self._folder / 'kubelet.json'}",
            f"--root-dir={self._folder / 'kubelet'}",
            f"--hostname-override={self._place.name}",
            f"--node-ip={self._place.address}",
        ]

    def _kubelet_config(self, authority: Authority) -> dict[str, object]:
        serving = authority.pair(self._place.process("kubelet"))
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self._place.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": f"unix://{self.containerd.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroups.NAME}/{self._place.group}",
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
            "resolvConf": str(self._folder / "resolv.conf"),
            "podLogsDir": str(self._folder / "pod-logs"),
        }

    def _proxy_config(self) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clusterCIDR": POD_RANGE,
            "clientConnection": {"kubeconfig": str(self.kubeconfig("kube-proxy"))},
            "hostnameOverride": self._place.name,
            "conntrack": {"maxPerCore": 0},  # the table's size is the machine's business
        }

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)
