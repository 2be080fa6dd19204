"""Brings the images where the cluster in use finds them: the nodes' containerd, or a registry; called by __main__.

Every image goes by two tags: the digest of its inputs, so that an upgrade rolls exactly what changed, and `dev`.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from e2e.cluster.commands import say, step
from e2e.cluster.containerd import Containerd
from e2e.cluster.errors import ClusterError
from e2e.cluster.machine import IMAGE_PACKAGES, NODE_PACKAGES, check_disk, hold_machine, install_packages, require_root
from e2e.cluster.paths import MACHINE_LOCK, Cache, foreign_kubeconfig
from e2e.cluster.places import PLACES
from e2e.cluster.processes import ProcessTable
from e2e.cluster.worker import describe_containerd
from e2e.images.base import ensure_base
from e2e.images.recipes import MOVING_TAG, RECIPES
from e2e.images.registry import serve_registry
from e2e.images.transfer import RemoteImage, transfer_image
from e2e.images.workshop import LOCAL, Build, Workshop

_COLD_GIGABYTES = 20  # torch's layer lies in the store, in the registry and, unpacked, in containerd
_WARM_GIGABYTES = 6


def make_images(cache: Cache, names: Iterable[str]) -> None:
    """Build those of the images `names` that changed, and deliver them to the cluster in use.

    With KUBECONFIG set that is the registry REGISTRY, else the local cluster's nodes, present or to come.
    """
    require_root()
    registry = choose_registry(cache)
    workshop = Workshop(cache)
    with hold_machine(MACHINE_LOCK):
        install_packages(NODE_PACKAGES + IMAGE_PACKAGES)
        workshop.store.clear_interrupted()
        warm = bool(workshop.store.builds(f"{LOCAL}/lorafleet/engine"))
        check_disk(cache.root, _WARM_GIGABYTES if warm else _COLD_GIGABYTES, "building the images")
        ensure_base(workshop.store, cache.images / "rootfs")
        builds = [workshop.make(recipe) for recipe in RECIPES if recipe.name in set(names)]
        if registry != LOCAL:
            _push_to_registry(workshop, builds, registry)
        else:
            _load_into_nodes(cache, workshop, builds)


def name_images(cache: Cache) -> dict[str, str]:
    """Each image's short name with the full name by which the cluster in use finds what the present tree makes."""
    registry, workshop = choose_registry(cache), Workshop(cache)
    return {recipe.name: workshop.plan(recipe).reference(registry) for recipe in RECIPES}


def choose_registry(cache: Cache) -> str:
    """REGISTRY for a cluster of the user's own, else "localhost". Raises ClusterError when the former is not set."""
    if not foreign_kubeconfig(cache):
        return LOCAL
    registry = os.environ.get("REGISTRY")
    if not registry:
        raise ClusterError("KUBECONFIG is set: set REGISTRY to a registry that its nodes can pull from")
    return registry


def _push_to_registry(workshop: Workshop, builds: Sequence[Build], registry: str) -> None:
    for build in builds:
        with step(f"pushing {build.reference(registry)}"):
            for tag in (build.tag, MOVING_TAG):
                workshop.store.push(build.reference(LOCAL), build.reference(registry, tag))


def _load_into_nodes(cache: Cache, workshop: Workshop, builds: Sequence[Build]) -> None:
    """Load into every running node; without a cluster into the stores from which the next one's nodes start."""
    processes = ProcessTable(cache.state)
    nodes = [describe_containerd(cache, place) for place in PLACES]
    running = [node for node in nodes if processes.alive(node.process)]
    if running:
        _load(cache, workshop, builds, running)
        return
    scratch = cache.images / "containerd-run"
    roots = [nodes[0].root, *(node.root for node in nodes[1:] if node.root.exists())]  # others are made of the first
    with ExitStack() as started:
        stores = [
            Containerd(root, scratch / root.name / "state", scratch / root.name / "cni", root.name) for root in roots
        ]
        for store in stores:
            started.enter_context(store.without_kubernetes(ProcessTable(scratch)))
        _load(cache, workshop, builds, stores)


def _load(cache: Cache, workshop: Workshop, builds: Sequence[Build], nodes: Sequence[Containerd]) -> None:
    missing = [(build, node) for node in nodes for build in _lacking(node, builds)]
    if missing:
        with serve_registry(cache.images) as address:
            for build in dict.fromkeys(build for build, _ in missing):
                workshop.store.push_plain(build.reference(LOCAL), build.reference(address, MOVING_TAG))
            for build, node in missing:
                with step(f"loading {build.reference(LOCAL)} through {node.process}"):
                    remote = RemoteImage(address, build.recipe.repository, MOVING_TAG)
                    transfer_image(remote, node, build.reference(LOCAL))
    for node in nodes:
        for build in builds:
            node.tag_image(build.reference(LOCAL), build.reference(LOCAL, MOVING_TAG))
        node.remove_images(_forgotten(workshop, node, builds))
    loaded = len({build for build, _ in missing})
    say(f"loaded {loaded} of {len(builds)} images into {len(nodes)} node stores; the others were there")


def _lacking(node: Containerd, builds: Sequence[Build]) -> list[Build]:
    present = node.images()
    return [build for build in builds if build.reference(LOCAL) not in present]


def _forgotten(workshop: Workshop, containerd: Containerd, builds: Iterable[Build]) -> list[str]:
    """Names of builds that the node has, but the store no more."""
    repositories = [f"{LOCAL}/{build.recipe.repository}" for build in builds]
    kept = {name for repository in repositories for name in workshop.store.builds(repository)}
    kept |= {f"{repository}:{MOVING_TAG}" for repository in repositories}
    return [name for name in containerd.images() if name.partition(":")[0] in repositories and name not in kept]
