"""`up` and `down` of the local cluster: the order of things, and nothing else; called by __main__."""

import shutil
from functools import partial
from pathlib import Path

from e2e.cluster.addons import COREDNS_IMAGE, apply_dns
from e2e.cluster.archive import ProgramImage, write_archive
from e2e.cluster.binaries import build_missing, locate
from e2e.cluster.commands import say, step
from e2e.cluster.containerd import PAUSE_IMAGE, Containerd
from e2e.cluster.errors import ClusterError
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.leftovers import remove_cluster
from e2e.cluster.machine import (
    NODE_PACKAGES,
    check_disk,
    hold_machine,
    install_packages,
    require_root,
)
from e2e.cluster.paths import MACHINE_LOCK, MACHINE_RECORD, Cache, foreign_kubeconfig
from e2e.cluster.whole import Whole

_DISK_GIGABYTES = 8  # binaries, Go's caches and a small image or two; `images` checks for its own


def bring_up(cache: Cache) -> str:
    """Give a Ready cluster and return its KUBECONFIG; a cluster of the user's own (KUBECONFIG) is only asked.

    A local cluster that already runs is replaced: it comes back empty in about ten seconds.
    """
    if foreign := foreign_kubeconfig(cache):
        _verify_foreign_cluster(cache, foreign)
        return foreign
    require_root()
    with hold_machine(MACHINE_LOCK):
        check_disk(cache.root, _DISK_GIGABYTES, "the local cluster")
        install_packages(NODE_PACKAGES)
        build_missing(cache)
        _remove_any(cache)
        MACHINE_RECORD.write_text(str(cache.state))
        _start(cache)
    say(f"cluster is up: export KUBECONFIG={cache.kubeconfig}")
    return str(cache.kubeconfig)


def take_down(cache: Cache) -> None:
    """End the local cluster and remove everything of it except binaries, images and assets."""
    require_root()
    with hold_machine(MACHINE_LOCK):
        _remove_any(cache)


def _remove_any(cache: Cache) -> None:
    """Remove this cache's cluster, or what is left of it, and one that was started from another cache."""
    recorded = {Path(MACHINE_RECORD.read_text())} if MACHINE_RECORD.exists() else set[Path]()
    with step("removing what an earlier cluster left"):
        for state in {cache.state, *recorded}:
            remove_cluster(state)
        MACHINE_RECORD.unlink(missing_ok=True)


def _verify_foreign_cluster(cache: Cache, kubeconfig: str) -> None:
    installed = shutil.which("kubectl")
    if not installed:
        build_missing(cache, ["kubectl"])
    kubectl = Kubectl(Path(installed) if installed else locate(cache, "kubectl"), None)
    if not kubectl.succeeds("get", "--raw", "/readyz"):
        raise ClusterError(f"KUBECONFIG={kubeconfig} is set, but its cluster does not answer; unset it for a local one")
    say(f"using the cluster of KUBECONFIG={kubeconfig}")


def _start(cache: Cache) -> None:
    cache.state.mkdir(parents=True)
    whole = Whole(cache)
    with step("making certificates and configurations"):
        whole.prepare()
    with step("giving both nodes the images"):
        whole.share_images(partial(_load_system_images, cache))
    with step("starting the control plane"):
        whole.start_control_plane()
    with step("starting the nodes"):
        whole.start_workers()
    with step("starting cluster DNS"):
        apply_dns(whole.kubectl)


def _load_system_images(cache: Cache, containerd: Containerd) -> None:
    """Pack and load the two images that the cluster itself needs, unless an earlier cluster left them."""
    images = [
        ProgramImage(PAUSE_IMAGE, Path("/bin/busybox"), ("/sleep", "infinity")),
        ProgramImage(COREDNS_IMAGE, locate(cache, "coredns"), ("/coredns",)),
    ]
    present = containerd.images()
    for image in images:
        if image.name not in present:
            archive = cache.state / "image.tar"
            write_archive(image, archive)
            containerd.import_image(archive)
            archive.unlink()
