"""An artifact of an OCI registry (`oci://registry/repository@sha256:...`): one layer a file. Opened by sources.py.

The form that `lorafleet push` and `oras push` write: every layer is a plain file whose title annotation is its name.
Archives are refused, so nothing is ever unpacked.
"""

from collections.abc import Mapping
from pathlib import Path

import httpx

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.registry import ADVICE, DIGEST, Registry
from lorafleet_engine.loader.streams import GRACE_SECONDS
from lorafleet_engine.loader.web_folder import GONE, WebFolder

TITLE = "org.opencontainers.image.title"
MOST_LAYERS = 4096


class OciFolder(WebFolder):
    """The files of one artifact, each compared with the digest that the manifest gives for it."""

    def __init__(self, registry: Registry, client: httpx.Client, grace: float = GRACE_SECONDS) -> None:
        self._layers = _Layers(registry)
        super().__init__(self._layers, client, grace)

    def fetch(self, name: str, target: Path, limit: int) -> str | None:
        """See Folder."""
        sha = super().fetch(name, target, limit)
        if sha is not None and f"sha256:{sha}" != self._layers.digest(name):
            raise JobError(
                ProblemCode.SOURCE_UNREACHABLE, f"the registry sends other bytes of {name} than its manifest says"
            )
        return sha


class _Layers:
    """See Site. The manifest is asked for with the first file."""

    absence = "no layer of this title"
    advice = ADVICE
    follows = True
    fixed = True

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._digests: dict[str, str] | None = None

    def digest(self, name: str) -> str | None:
        """What the manifest says of a file, None when there is none of this name. Raises JobError."""
        if self._digests is None:
            self._digests = _files_of(self._registry.manifest())
        return self._digests.get(name)

    def url(self, name: str) -> str | None:
        """See Site."""
        digest = self.digest(name)
        return None if digest is None else f"{self._registry.root}/blobs/{digest}"

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        """See Site."""
        return self._registry.headers()

    def is_absent(self, status: int, *, read_before: bool) -> bool:
        """See Site. A blob that the manifest names must be there."""
        return False

    def hint(self, response: httpx.Response) -> str:
        """See Site."""
        return "the manifest names it, the registry does not have it" if response.status_code in GONE else ""


def _files_of(manifest: Mapping[str, object]) -> dict[str, str]:
    layers = manifest.get("layers")
    if not isinstance(layers, list) or len(layers) > MOST_LAYERS:
        raise JobError(
            ProblemCode.UNSUPPORTED_ADAPTER, "the artifact has no list of layers: push it with `lorafleet push`"
        )
    digests: dict[str, str] = {}
    for layer in layers:
        found = layer if isinstance(layer, dict) else {}
        annotations, digest = found.get("annotations"), found.get("digest")
        name = annotations.get(TITLE) if isinstance(annotations, dict) else None
        if not isinstance(name, str) or not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise JobError(
                ProblemCode.UNSUPPORTED_ADAPTER,
                "a layer of the artifact is no file with a title, or no sha256: push it with `lorafleet push`",
            )
        if digests.setdefault(name, digest) != digest:
            raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, f"the artifact has two files of the name {name!r}")
    return digests
