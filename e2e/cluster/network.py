"""The nodes' link, their pod networks (CNI bridges), cuts between them, and the rules that all of it leaves behind.

Every name here is the cluster's own, so that cleaning up never meets another program's bridge or lease.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.commands import run, succeeds
from e2e.cluster.places import FIRST, PLACES, SECOND, Place

_NODE_LINK = "lfleet-node"
_FAR_END = "eth0"  # of the link, in the second node's namespace
_POD_BRIDGE = "lfleet-pods"
_NETWORK_NAME = "lorafleet"
_CNI_RESULTS = Path("/var/lib/cni/results")
# Chains of kube-proxy, kubelet, kube-router and the CNI plugins.
_OUR_CHAIN = re.compile(r"(KUBE-|CNI-)[A-Z0-9a-z-]+")
_OUR_SETS = ("KUBE-", "kube-router-", "inet6:KUBE-", "inet6:kube-router-")


def create_node_link() -> None:
    """Join the machine and the second node's network namespace by a link with addresses of its own.

    Nothing depends on the machine's other addresses, whatever they are or become.
    """
    run(["ip", "netns", "add", SECOND.namespace])
    run(["ip", "link", "add", _NODE_LINK, "type", "veth", "peer", "name", _FAR_END, "netns", SECOND.namespace])
    for place, link in ((FIRST, _NODE_LINK), (SECOND, _FAR_END)):
        _inside(place, "ip", "address", "add", f"{place.address}/24", "dev", link)
        _inside(place, "ip", "link", "set", link, "up")
        _inside(place, "ip", "link", "set", "lo", "up")
        _inside(place, "sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1")
        if Path("/proc/sys/net/bridge").exists():  # pods of one node reach each other's Services through the rules
            _inside(place, "sysctl", "--quiet", "--write", "net.bridge.bridge-nf-call-iptables=1")
    _add_routes()


def _add_routes() -> None:
    run(["ip", "route", "replace", SECOND.pod_range, "via", SECOND.address])
    _inside(SECOND, "ip", "route", "replace", "default", "via", FIRST.address)


def cut_node_link() -> None:
    """Part the two nodes: neither they nor their pods reach each other, as when a cable is pulled."""
    _inside(SECOND, "ip", "link", "set", _FAR_END, "down")


def mend_node_link() -> None:
    """Join the two nodes again."""
    _inside(SECOND, "ip", "link", "set", _FAR_END, "up")
    _add_routes()  # the kernel dropped those over a link that is down


def cut_pods(one: str, other: str) -> None:
    """Drop every packet between two pod addresses, in both directions, on both nodes."""
    for place in PLACES:
        for rule in _drops(one, other):
            _inside(place, "iptables", "--wait", "--table", "raw", "--insert", *rule)


def mend_pods(one: str, other: str) -> None:
    """Undo cut_pods. Raises CommandFailed when they were not cut."""
    for place in PLACES:
        for rule in _drops(one, other):
            _inside(place, "iptables", "--wait", "--table", "raw", "--delete", *rule)


def _drops(one: str, other: str) -> list[list[str]]:
    """In `raw`, before connections are tracked: an established connection is cut, too."""
    pairs = ((one, other), (other, one))
    return [["PREROUTING", "--source", source, "--destination", target, "--jump", "DROP"] for source, target in pairs]


def _inside(place: Place, *command: str) -> str:
    return run([*place.inside, *command])


def write_cni_config(folder: Path, leases: Path, pod_range: str) -> None:
    """Write a node's pod network: one bridge; its pods keep their own addresses and reach nothing outside.

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
            "ranges": [[{"subnet": pod_range}]],
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
    if SECOND.namespace_file.exists():  # takes its links, rules and sets along
        run(["ip", "netns", "delete", SECOND.namespace])
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
    ours = [name for name in run(["ipset", "list", "-name"]).splitlines() if name.startswith(_OUR_SETS)]
    for verb in ("flush", "destroy"):  # a set that is a member of another cannot be destroyed
        for name in ours:
            run(["ipset", verb, name])
