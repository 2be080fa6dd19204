"""Writes kubeconfig files (JSON, which is YAML); used for the administrator and for every component."""

import base64
import json
from pathlib import Path

from e2e.cluster.certificates import KeyPair


def write_kubeconfig(path: Path, server: str, authority: Path, client: KeyPair) -> None:
    """Write a kubeconfig for `server` (https URL) with every certificate inside, so that the file may be copied."""
    name = "lorafleet"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": _encode(authority)}}],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": _encode(client.certificate),
                    "client-key-data": _encode(client.key),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))


def _encode(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
