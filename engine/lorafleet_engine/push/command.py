"""`lorafleet push DIR oci://REGISTRY/REPOSITORY[:TAG]`: digests, signs and uploads an adapter, prints its manifest.

Reads the registry's login from Docker's configuration; writes nothing on this machine.
"""

import argparse
import base64
import binascii
import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from lorafleet_contracts.digest import IncompleteFolderError, adapter_files, canonical_digest, file_digest
from lorafleet_contracts.names import API_VERSION
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.egress import open_client, reach_of
from lorafleet_engine.loader.origin import Credentials
from lorafleet_engine.loader.registry import Reference, Registry, read_reference
from lorafleet_engine.loader.signatures import SIGNATURE
from lorafleet_engine.push.artifact import Blob, bytes_blob, file_blob, upload
from lorafleet_engine.push.signing import sign

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def register(subparsers: "Subparsers") -> None:
    """Add `lorafleet push`."""
    parser = subparsers.add_parser("push", help="upload an adapter's folder to an OCI registry")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("target", metavar="oci://REGISTRY/REPOSITORY[:TAG]")
    parser.add_argument("--key", type=Path, help="sign with this private key (PEM, elliptic curve)")
    parser.add_argument("--ca-bundle", type=Path, help="PEM certificates to trust beside the public ones")
    parser.add_argument("--name", help="the LoraAdapter's name in the printed manifest; the repository's last part")
    parser.add_argument("--pool", default="POOL", help="the LoraPool's name in the printed manifest")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Push and print; 1 with the reason on stderr when that is not possible."""
    try:
        reference = read_reference(parsed.target)
        shas, files = pack(parsed.folder, parsed.key)
        digest = _push(reference, files, parsed.ca_bundle.read_text() if parsed.ca_bundle else "")
    except (JobError, IncompleteFolderError, OSError, ValueError, httpx.HTTPError) as error:
        print(f"lorafleet: {error}", file=sys.stderr)
        return 1
    name = parsed.name or reference.repository.rpartition("/")[2]
    uri = f"oci://{reference.host}/{reference.repository}@{digest}"
    print(manifest(name, parsed.pool, uri, canonical_digest(shas)), end="")
    return 0


def pack(folder: Path, key: Path | None) -> tuple[dict[str, str], dict[str, Blob]]:
    """SHA-256 of the files that count for the digest, and all blobs by name: those, and the signature if there is one.

    Raises IncompleteFolderError, OSError or ValueError.
    """
    shas = {name: file_digest(folder / name) for name in adapter_files(folder)}
    files = {name: file_blob(folder / name, sha) for name, sha in shas.items()}
    if key is not None:
        password = os.environ.get("LORAFLEET_KEY_PASSWORD")
        signed = sign(shas, folder.resolve().name, key.read_bytes(), password.encode() if password else None)
        files[SIGNATURE] = bytes_blob(signed)
    elif (folder / SIGNATURE).is_file():
        files[SIGNATURE] = bytes_blob((folder / SIGNATURE).read_bytes())
    return shas, files


def manifest(name: str, pool: str, uri: str, digest: str) -> str:
    """The LoraAdapter to apply."""
    return (
        f"apiVersion: {API_VERSION}\nkind: LoraAdapter\nmetadata:\n  name: {name}\nspec:\n"
        f"  poolRef:\n    name: {pool}\n  source:\n    uri: {uri}\n    digest: {digest}\n"
    )


def docker_login(host: str, config: Path) -> Credentials:
    """The login for a registry in Docker's configuration; none where there is none. Raises ValueError."""
    if not config.is_file():
        return Credentials()
    found = json.loads(config.read_text())
    for name, entry in found.get("auths", {}).items():
        if urlsplit(name if "//" in name else f"//{name}").netloc == host and entry.get("auth"):
            try:
                username, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError) as error:
                raise ValueError(f"the entry for {host} in {config} cannot be read") from error
            return Credentials(username=username, password=password)
    if found.get("credsStore") or host in found.get("credHelpers", {}):
        raise ValueError(f"{config} leaves {host} to a credential helper, which is not asked: write its auth there")
    return Credentials()


def _push(reference: Reference, files: dict[str, Blob], ca_bundle: str) -> str:
    config = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker")) / "config.json"
    login = docker_login(reference.host, config)
    with closing(open_client(reach_of(f"https://{reference.host}", private=True), ca_bundle)) as client:
        return upload(files, Registry(reference, client, login, "pull,push"), client)
