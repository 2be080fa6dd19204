"""What can befall the local cluster's nodes: a node lost and back, the link between the nodes or between two pods cut.

Called by the `node` commands and by the e2e tests. A drain needs nothing of this: `kubectl drain` works.
"""

from e2e.cluster import network
from e2e.cluster.errors import ClusterError
from e2e.cluster.machine import hold_machine, require_root
from e2e.cluster.paths import MACHINE_LOCK, Cache, foreign_kubeconfig
from e2e.cluster.places import PLACES, SECOND, Place
from e2e.cluster.processes import ProcessTable
from e2e.cluster.worker import Worker


def lose_node(cache: Cache, name: str) -> None:
    """End a node as a power cut does: its pods and programs are killed, and nobody tells the API server.

    Of the second node nothing answers any more, not even with a refusal. The control plane, which runs beside the first
    node, stays, and so does that node's network.
    """
    place = _check(cache, name)
    with hold_machine(MACHINE_LOCK):
        if place == SECOND:
            network.cut_node_link()
        Worker(cache, place).stop()


def return_node(cache: Cache, name: str) -> None:
    """Start a lost node again and wait until it is Ready; pods that are still its own start again."""
    place = _check(cache, name)
    with hold_machine(MACHINE_LOCK):
        worker = Worker(cache, place)
        if ProcessTable(cache.state).alive(place.process("kubelet")):
            raise ClusterError(f"node {name} runs")
        if place == SECOND:
            network.mend_node_link()
        worker.start()
        worker.await_ready()


def cut_nodes(cache: Cache) -> None:
    """Part the two nodes: the second and its pods reach neither the first, nor the API server, nor the other way."""
    _check(cache, PLACES[0].name)
    network.cut_node_link()


def mend_nodes(cache: Cache) -> None:
    """Undo cut_nodes."""
    _check(cache, PLACES[0].name)
    network.mend_node_link()


def cut_pods(cache: Cache, one: str, other: str) -> None:
    """Drop all packets between two addresses of pods, those of established connections, too."""
    _check(cache, PLACES[0].name)
    network.cut_pods(one, other)


def mend_pods(cache: Cache, one: str, other: str) -> None:
    """Undo cut_pods. Raises CommandFailed where they were not cut."""
    _check(cache, PLACES[0].name)
    network.mend_pods(one, other)


def _check(cache: Cache, name: str) -> Place:
    """The node of that name. Raises ClusterError unless it is one of a local cluster that is up."""
    require_root()
    if foreign_kubeconfig(cache) or not ProcessTable(cache.state).alive("kube-apiserver"):
        raise ClusterError("only the nodes of a running local cluster can be lost or cut off")
    for place in PLACES:
        if place.name == name:
            return place
    raise ClusterError(f"no node is called {name}; there are {', '.join(place.name for place in PLACES)}")
