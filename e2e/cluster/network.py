"""The node's addresses, its pod network (CNI bridge) and the packet filter rules that it leaves; used by node and down.

Every name here is the cluster's own, so that cleaning up never meets another program's bridge or lease.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.commands import run, succeeds

NODE_ADDRESS = "10.250.0.1"
POD_RANGE = "10.244.0.0/16"
_NODE_POD_RANGE = "10.244.0.0/24"
_NODE_LINK = "lfleet-node"
_POD_BRIDGE = "lfleet-pods"
_NETWORK_NAME = "lorafleet"
_CNI_RESULTS = Path("/var/lib/cni/results")
# Chains of kube-proxy, kubelet, kube-router and the CNI plugins.
_OUR_CHAIN = re.compile(r"(KUBE-|CNI-)[A-Z0-9a-z-]+")
_OUR_SETS = ("KUBE-", "kube-router-", "inet6:KUBE-", "inet6:kube-router-")


def create_node_link() -> None:
    """Give the machine a private address of its own for the node, whatever its other ones are or become."""
    run(["ip", "link", "add", _NODE_LINK, "type", "bridge"])
    run(["ip", "address", "add", f"{NODE_ADDRESS}/24", "dev", _NODE_LINK])
    run(["ip", "link", "set", _NODE_LINK, "up"])
    run(["sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1"])
    if Path("/proc/sys/net/bridge").exists():  # pods of one node reach each other's Services through the rules
        run(["sysctl", "--quiet", "--write", "net.bridge.bridge-nf-call-iptables=1"])


def write_cni_config(folder: Path, leases: Path) -> None:
    """Write the pod network's configuration: one bridge; its pods keep their own addresses and reach nothing outside.

    No masquerade: NetworkPolicies judge the pod's own address.
    """
    folder.mkdir(parents=True)
    bridge = {
        "type": "bridge",
        "bridge": _POD_BRIDGE,
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(leases),
            "ranges": [[{"subnet": _NODE_POD_RANGE}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    config = {"cniVersion": "0.4.0", "name": _NETWORK_NAME, "plugins": [bridge]}
    (folder / "10-lorafleet.conflist").write_text(json.dumps(config, indent=1))


def remove_network() -> None:
    """Remove links, CNI results, packet filter rules and sets that this cluster, or a killed run of it, left."""
    for link in (_NODE_LINK, _POD_BRIDGE):
        if Path("/sys/class/net", link).exists():
            run(["ip", "link", "delete", link])
    for result in _CNI_RESULTS.glob(f"{_NETWORK_NAME}-*-*"):
        sandbox = result.name.split("-")[1]
        for path in _CNI_RESULTS.glob(f"*-{sandbox}-*"):  # the loopback plugin's, too
            path.unlink()
    for family in ("iptables", "ip6tables"):
        _remove_rules(family)
    _remove_sets()


def _remove_rules(family: str) -> None:
    if not succeeds([f"{family}-save"]):  # not installed, or a kernel without it: nothing can be left
        return
    script = removal_script(run([f"{family}-save"]).splitlines())
    if script:
        run([f"{family}-restore", "--noflush"], stdin=script)


def removal_script(saved: Iterable[str]) -> str:
    """An `iptables-restore --noflush` script that removes the cluster's chains and all that jumps to them.

    `saved` are the lines of iptables-save; "" when they hold nothing of the cluster's.
    """
    script: list[str] = []
    table, jumps, chains = "", list[str](), list[str]()
    for line in saved:
        if line.startswith("*"):
            table, jumps, chains = line, [], []
        elif line.startswith(":"):
            chain = line[1:].split()[0]
            if _OUR_CHAIN.fullmatch(chain):
                chains.append(chain)
        elif line.startswith("-A "):
            if not _OUR_CHAIN.fullmatch(line.split()[1]) and _jumps_to_ours(line):
                jumps.append(line.replace("-A ", "-D ", 1))
        elif line == "COMMIT" and (jumps or chains):
            removals = [*jumps, *(f"-F {chain}" for chain in chains), *(f"-X {chain}" for chain in chains)]
            script += [table, *removals, "COMMIT"]
    return "".join(f"{line}\n" for line in script)


def _jumps_to_ours(rule: str) -> bool:
    words = rule.split()
    targets = [words[place + 1] for place, word in enumerate(words) if word in ("-j", "-g")]
    return any(_OUR_CHAIN.fullmatch(target) for target in targets)


def _remove_sets() -> None:
    if not succeeds(["ipset", "list", "-name"]):
        return
    for name in run(["ipset", "list", "-name"]).splitlines():
        if name.startswith(_OUR_SETS):
            run(["ipset", "destroy", name])
