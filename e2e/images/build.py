"""Builds the images whose inputs changed and brings them where the cluster finds them; called by __main__."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import say, step
from e2e.cluster.containerd import Containerd
from e2e.cluster.errors import ClusterError
from e2e.cluster.machine import IMAGE_PACKAGES, check_disk, hold_machine, install_packages, require_root
from e2e.cluster.node import describe_containerd
from e2e.cluster.paths import REPOSITORY, Cache, foreign_kubeconfig
from e2e.cluster.processes import ProcessTable
from e2e.images.base import BASE_IMAGE, ensure_base
from e2e.images.recipes import RECIPES, Recipe, digest_inputs
from e2e.images.registry import serve_registry
from e2e.images.store import BuildRequest, ImageStore

_COLD_GIGABYTES = 20  # torch's layer lies in the store, in the registry and, unpacked, in containerd
_WARM_GIGABYTES = 6
_LOCAL = "localhost"


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where images are built: the store, the stamps, and the folder of demo assets (None before `make assets`)."""

    store: ImageStore
    folder: Path
    assets: Path | None


def make_images(cache: Cache, names: Iterable[str]) -> None:
    """Build those of the images `names` that changed, and deliver them to the cluster in use.

    With KUBECONFIG set that is the registry REGISTRY, else the local cluster's containerd, when it runs.
    """
    require_root()
    wanted = [recipe for recipe in RECIPES if recipe.name in set(names)]
    assets = (cache.assets / "current").resolve()
    store = ImageStore(cache.images / "store", cache.images / "logs")
    workshop = Workshop(store, cache.images, assets if assets.is_dir() else None)
    with hold_machine(cache.lock):
        install_packages(IMAGE_PACKAGES)
        warm = store.has(_local_name(RECIPES[-1]))
        check_disk(cache.root, _WARM_GIGABYTES if warm else _COLD_GIGABYTES, "building the images")
        ensure_base(store, cache.images / "rootfs")
        digests = {recipe.name: build_image(workshop, recipe) for recipe in wanted}
        if foreign_kubeconfig(cache):
            _push_to_registry(store, wanted)
        elif not ProcessTable(cache.state).alive("containerd"):
            say("no local cluster runs: the images are loaded by the next `make images` after `make cluster-up`")
        else:
            _load_into_cluster(workshop, describe_containerd(cache), wanted, digests)


def build_image(workshop: Workshop, recipe: Recipe) -> str:
    """Build one image unless its inputs are those of the last build; the digest of its inputs."""
    store, image = workshop.store, _local_name(recipe)
    if recipe.needs_assets and workshop.assets is None:
        raise ClusterError("the demo assets are not built: run `make assets`")
    contexts = {"assets": workshop.assets} if recipe.needs_assets and workshop.assets else {}
    outside = [store.identify(BASE_IMAGE), *(folder.name for folder in contexts.values())]
    digest = digest_inputs(REPOSITORY, recipe, outside)
    stamp = workshop.folder / "built" / f"{recipe.name}.json"
    if _read_stamp(stamp) == digest and store.has(image):
        return digest
    with step(f"building {image}"):
        dockerfile = REPOSITORY / recipe.dockerfile
        store.build(BuildRequest(image, dockerfile, REPOSITORY, {"BASE": BASE_IMAGE}, contexts))
        store.drop_dangling()
    _write_stamp(stamp, digest)
    return digest


def _load_into_cluster(
    workshop: Workshop, containerd: Containerd, recipes: Iterable[Recipe], digests: dict[str, str]
) -> None:
    present = containerd.image_names()
    stale = [
        recipe
        for recipe in recipes
        if _local_name(recipe) not in present or _read_stamp(_loaded_stamp(workshop, recipe)) != digests[recipe.name]
    ]
    if not stale:
        say("the cluster has every image already")
        return
    with serve_registry(workshop.folder) as address:
        for recipe in stale:
            image, remote = _local_name(recipe), f"{address}/{recipe.repository}:{recipe.tag}"
            with step(f"loading {image}"):
                workshop.store.push(image, remote, plain_http=True)
                containerd.pull_image(remote, image)
            _write_stamp(_loaded_stamp(workshop, recipe), digests[recipe.name])


def _push_to_registry(store: ImageStore, recipes: Iterable[Recipe]) -> None:
    registry = os.environ.get("REGISTRY")
    if not registry:
        raise ClusterError("KUBECONFIG is set: set REGISTRY to a registry that its nodes can pull from")
    for recipe in recipes:
        destination = f"{registry}/{recipe.repository}:{recipe.tag}"
        with step(f"pushing {destination}"):
            store.push(_local_name(recipe), destination, plain_http=False)


def _local_name(recipe: Recipe) -> str:
    return f"{_LOCAL}/{recipe.repository}:{recipe.tag}"


def _loaded_stamp(workshop: Workshop, recipe: Recipe) -> Path:
    return workshop.folder / "loaded" / f"{recipe.name}.json"


def _read_stamp(path: Path) -> str:
    return str(json.loads(path.read_text())) if path.exists() else ""


def _write_stamp(path: Path, digest: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(digest))
