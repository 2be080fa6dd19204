"""Opens the folder that a source names: pvc, file, http(s), s3, hf or oci. Called by loader/jobs.py.

A folder gives plain files by name and nothing else: names never leave it, links and redirects lead nowhere else than
its kind allows, sizes and times are bounded while streaming, and the network is only reached through loader/egress.py.
"""

from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.egress import open_client, reach_of
from lorafleet_engine.loader.hub_site import PUBLIC as HUB
from lorafleet_engine.loader.hub_site import HubSite
from lorafleet_engine.loader.local_folder import LocalFolder
from lorafleet_engine.loader.oci_folder import OciFolder
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.loader.registry import Registry, read_reference
from lorafleet_engine.loader.streams import GRACE_SECONDS, plain_segment
from lorafleet_engine.loader.web_folder import PlainSite, WebFolder


class Folder(Protocol):
    """Where files are fetched from. `absence` is how this kind of source says that a file is not there."""

    absence: str

    def fetch(self, name: str, target: Path, limit: int) -> str | None:
        """Write file `name` to `target`; return its SHA-256 in hex, None when there is none. Raises JobError."""
        ...

    def changed(self) -> str | None:
        """The name of a file that is another by now than when it was fetched from here, or None. Raises JobError."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def open_folder(origin: Origin, volumes_dir: Path, grace: float = GRACE_SECONDS) -> Folder:
    """The folder of a source; after `grace` seconds slowness counts. Raises JobError for what is not read here."""
    parts = _split(origin.uri)
    match parts.scheme:
        case "pvc" if parts.netloc:
            return LocalFolder(volumes_dir / plain_segment(parts.netloc), unquote(parts.path).strip("/"))
        case "file" if not parts.netloc and parts.path.startswith("/"):
            return LocalFolder(Path(unquote(parts.path)), "")
        case "http" | "https" if parts.hostname:
            client = open_client(reach_of(origin.uri, origin.private), origin.ca_bundle)
            return WebFolder(PlainSite(origin.uri, origin.credentials.token), client, grace)
        case "s3" if parts.netloc:
            return _open_s3(origin, grace)
        case "hf" if parts.netloc:
            client = open_client(reach_of(origin.endpoint or HUB, origin.private), origin.ca_bundle)
            return WebFolder(HubSite(origin, client), client, grace)
        case "oci" if parts.hostname:
            reference = read_reference(origin.uri)
            client = open_client(reach_of(origin.uri, origin.private), origin.ca_bundle)
            return OciFolder(Registry(reference, client, origin.credentials), client, grace)
    raise JobError(
        ProblemCode.INVALID_REQUEST,
        f"the source uri {origin.uri!r} is none of pvc://, file:///, http(s)://, s3://, hf://, oci://",
    )


def _open_s3(origin: Origin, grace: float) -> WebFolder:
    # Late: minio takes longer to import than most adapters to load.
    from lorafleet_engine.loader.s3_site import S3Site

    site = S3Site(origin)
    client = open_client(reach_of(site.root, origin.private), origin.ca_bundle)
    return WebFolder(site, client, grace)


def _split(uri: str) -> SplitResult:
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError as error:
        raise JobError(ProblemCode.INVALID_REQUEST, f"the source uri cannot be read: {error}") from error
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise JobError(ProblemCode.INVALID_REQUEST, "a source uri has no user, query or fragment")
    return parts
