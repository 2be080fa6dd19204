"""Packs one static program as a container image (a Docker archive), without any builder; used for pause and CoreDNS."""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProgramImage:
    """An image of one statically linked program: `source` becomes `/name`, started as `command` by an ordinary user."""

    name: str
    source: Path
    command: tuple[str, ...]


def write_archive(image: ProgramImage, target: Path) -> None:
    """Write `image` to `target`, a tar file that `ctr images import` reads. The same program gives the same bytes."""
    layer = _pack({image.command[0].lstrip("/"): image.source.read_bytes()}, mode=0o755)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(image.command), "User": "65532:65532"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            "history": [{"created_by": "lorafleet local cluster"}],
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [image.name], "Layers": ["layer.tar"]}]).encode()
    target.write_bytes(_pack({"config.json": config, "layer.tar": layer, "manifest.json": manifest}, mode=0o644))


def _pack(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
