"""Builds one image at a time and knows what it is called: a tag that is the digest of its inputs. Used by delivery."""

from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import step
from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import REPOSITORY, Cache
from e2e.images.base import BASE_IMAGE
from e2e.images.recipes import Recipe, digest_inputs
from e2e.images.store import BuildRequest, ImageStore

LOCAL = "localhost"
_KEPT_BUILDS = 3  # of each image, so that running pods and other checkouts of the repository find theirs


@dataclass(frozen=True, slots=True)
class Build:
    """One image as it is made from the present tree."""

    recipe: Recipe
    tag: str

    def reference(self, registry: str, tag: str = "") -> str:
        """The image's full name in `registry`; with its own tag, or another one that points to it."""
        return f"{registry}/{self.recipe.repository}:{tag or self.tag}"


class Workshop:
    """The store of images, and what lies outside the tree: the base image and the folder of demo assets."""

    def __init__(self, cache: Cache) -> None:
        self.store = ImageStore(cache.images / "store", cache.images / "logs")
        self._assets = (cache.assets / "current").resolve()

    def plan(self, recipe: Recipe) -> Build:
        """What the image would be called, built or not. Raises ClusterError when the demo assets are missing."""
        outside = [self.store.identify(BASE_IMAGE), *(folder.name for folder in self._contexts(recipe).values())]
        return Build(recipe, digest_inputs(REPOSITORY, recipe, outside))

    def make(self, recipe: Recipe) -> Build:
        """Build the image unless the store has it, and forget builds from long ago. Raises CommandFailed."""
        build = self.plan(recipe)
        image = build.reference(LOCAL)
        if self.store.has(image):
            return build
        with step(f"building {image}"):
            dockerfile = REPOSITORY / recipe.dockerfile
            request = BuildRequest(image, dockerfile, REPOSITORY, {"BASE": BASE_IMAGE}, self._contexts(recipe))
            self.store.build(request, log=f"{recipe.name}.log")
            others = [name for name in self.store.builds(f"{LOCAL}/{recipe.repository}") if name != image]
            for old in others[_KEPT_BUILDS - 1 :]:
                self.store.drop(old)
        return build

    def _contexts(self, recipe: Recipe) -> dict[str, Path]:
        if not recipe.needs_assets:
            return {}
        if not self._assets.is_dir():
            raise ClusterError("the demo assets are not built: run `make assets`")
        return {"assets": self._assets}
