"""Uploads the files of an adapter as one OCI artifact, a layer a file. Called by push/command.py."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlencode, urljoin, urlsplit

import httpx

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.oci_folder import TITLE
from lorafleet_engine.loader.registry import DIGEST, MANIFEST, Registry
from lorafleet_engine.loader.web_folder import DENIED

ARTIFACT = "application/vnd.lorafleet.adapter.v1"
FILE = "application/octet-stream"
EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"


@dataclass(frozen=True, slots=True)
class Blob:
    """What is uploaded: bytes of `size` in `source`, whose SHA-256 is `digest`."""

    source: Path | bytes
    digest: str
    size: int


def file_blob(path: Path, sha: str) -> Blob:
    """A file of known SHA-256 (hex)."""
    return Blob(path, f"sha256:{sha}", path.stat().st_size)


def bytes_blob(content: bytes) -> Blob:
    """Bytes in memory."""
    return Blob(content, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))


def upload(files: Mapping[str, Blob], registry: Registry, client: httpx.Client) -> str:
    """Upload files by name and the manifest that lists them; its digest. Raises JobError or httpx.HTTPError.

    What the registry has already is not sent again. The manifest gets the reference's tag, if that has one.
    """
    for blob in (bytes_blob(EMPTY), *files.values()):
        _upload_blob(blob, registry, client)
    manifest = json.dumps(_manifest(files)).encode()
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    version = registry.reference.version
    name = digest if not version or DIGEST.fullmatch(version) else version
    headers = {"content-type": MANIFEST, **registry.headers()}
    _expect(client.put(f"{registry.root}/manifests/{name}", content=manifest, headers=headers), "the manifest", 201)
    return digest


def _manifest(files: Mapping[str, Blob]) -> dict[str, Any]:
    layers = [
        {"mediaType": FILE, "digest": blob.digest, "size": blob.size, "annotations": {TITLE: name}}
        for name, blob in sorted(files.items())
    ]
    config = {"mediaType": EMPTY_TYPE, "digest": bytes_blob(EMPTY).digest, "size": len(EMPTY)}
    head = {"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": ARTIFACT}
    return {**head, "config": config, "layers": layers}


def _upload_blob(blob: Blob, registry: Registry, client: httpx.Client) -> None:
    there = client.head(f"{registry.root}/blobs/{blob.digest}", headers=registry.headers())
    if there.status_code == httpx.codes.OK:
        return
    begun = client.post(f"{registry.root}/blobs/uploads/", headers={**registry.headers(), "content-length": "0"})
    _expect(begun, "an upload", 202)
    where = urljoin(str(begun.request.url), begun.headers.get("location", ""))
    own = urlsplit(where)[:2] == urlsplit(registry.root)[:2]
    if urlsplit(where).scheme != "https":
        raise JobError(ProblemCode.SOURCE_FORBIDDEN, "the registry wants the upload without TLS")
    where += ("&" if urlsplit(where).query else "?") + urlencode({"digest": blob.digest})
    headers = {**(registry.headers() if own else {}), "content-type": FILE, "content-length": str(blob.size)}
    if isinstance(blob.source, bytes):
        _expect(client.put(where, content=blob.source, headers=headers), "an upload", 201)
        return
    with blob.source.open("rb") as source:
        _expect(client.put(where, content=_chunks(source), headers=headers), blob.source.name, 201)


def _chunks(source: BinaryIO) -> Any:
    return iter(lambda: source.read(1 << 20), b"")


def _expect(response: httpx.Response, what: str, status: int) -> None:
    if response.status_code in DENIED:
        raise JobError(
            ProblemCode.SOURCE_DENIED,
            f"the registry answers {what} with HTTP {response.status_code}: log in (`docker login`), or ask for the "
            "right to push there",
        )
    if response.status_code != status:
        said = f"the registry answers {what} with HTTP {response.status_code}: {response.text[:300]}"
        raise JobError(ProblemCode.SOURCE_UNREACHABLE, said)
