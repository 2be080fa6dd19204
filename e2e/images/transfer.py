"""Moves an image from the registry on this machine into containerd, and of its layers only those that it lacks.

Used by delivery. `ctr images pull` would fetch every layer again whose compressed form isn't kept; importing an archive
that leaves out what is unpacked already moves a few hundred kilobytes when only our code changed.
"""

import hashlib
import io
import json
import tarfile
import urllib.request
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import IO, Any

from e2e.cluster.containerd import Containerd

_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_NAME_ANNOTATION = "io.containerd.image.name"


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """An image in a registry that speaks plain HTTP on this machine."""

    registry: str
    repository: str
    tag: str

    def open_blob(self, digest: str) -> IO[bytes]:
        """Stream one blob; the caller closes it."""
        return self._open("blobs", digest, "*/*")

    def read_manifest(self) -> bytes:
        """The manifest's exact bytes: its digest is the image's."""
        with self._open("manifests", self.tag, _MANIFEST_TYPE) as answer:
            return answer.read()

    def _open(self, kind: str, reference: str, accepted: str) -> IO[bytes]:
        url = f"http://{self.registry}/v2/{self.repository}/{kind}/{reference}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        answer: IO[bytes] = opener.open(urllib.request.Request(url, headers={"Accept": accepted}), timeout=60)
        return answer


def transfer_image(remote: RemoteImage, containerd: Containerd, name: str) -> None:
    """Bring `remote` into containerd under `name`. Raises CommandFailed when containerd refuses it."""
    manifest = remote.read_manifest()
    parsed = json.loads(manifest)
    with remote.open_blob(parsed["config"]["digest"]) as answer:
        config = answer.read()
    missing = missing_layers(parsed["layers"], json.loads(config)["rootfs"]["diff_ids"], containerd.unpacked_layers())
    with containerd.import_stream() as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(archive, "index.json", make_index(manifest, name))
        _add_blob(archive, digest_of(manifest), len(manifest), io.BytesIO(manifest))
        _add_blob(archive, digest_of(config), len(config), io.BytesIO(config))
        for layer in missing:
            with remote.open_blob(layer["digest"]) as answer:
                _add_blob(archive, layer["digest"], layer["size"], answer)


def missing_layers(
    layers: Sequence[dict[str, Any]], diff_ids: Sequence[str], unpacked: Collection[str]
) -> list[dict[str, Any]]:
    """Those of a manifest's `layers` whose unpacked form isn't among `unpacked`, a set of chain ids.

    Chain ids are those of the OCI image specification: a layer's own content and all below it.
    """
    return [layer for layer, chain in zip(layers, chain_ids(diff_ids), strict=True) if chain not in unpacked]


def chain_ids(diff_ids: Sequence[str]) -> list[str]:
    """The chain id of each layer, from the bottom up."""
    chains = list(diff_ids[:1])
    for diff_id in diff_ids[1:]:
        chains.append(digest_of(f"{chains[-1]} {diff_id}".encode()))
    return chains


def make_index(manifest: bytes, name: str) -> bytes:
    """The index of an image layout that holds one image, to be known as `name`."""
    entry = {
        "mediaType": _MANIFEST_TYPE,
        "digest": digest_of(manifest),
        "size": len(manifest),
        "annotations": {_NAME_ANNOTATION: name},
    }
    return json.dumps({"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": [entry]}).encode()


def digest_of(content: bytes) -> str:
    """The content's digest as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    _add_stream(archive, name, len(content), io.BytesIO(content))


def _add_blob(archive: tarfile.TarFile, digest: str, size: int, stream: IO[bytes]) -> None:
    _add_stream(archive, f"blobs/{digest.replace(':', '/')}", size, stream)


def _add_stream(archive: tarfile.TarFile, name: str, size: int, stream: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    archive.addfile(entry, stream)
