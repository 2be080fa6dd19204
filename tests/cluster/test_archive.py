"""The image archive holds what Docker's layout says, and the same program gives the same bytes."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from e2e.cluster.archive import ProgramImage, write_archive


def pack(tmp_path: Path, name: str) -> Path:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    target = tmp_path / name
    write_archive(ProgramImage("localhost/test/program:1", program, ("/program", "--flag")), target)
    return target


def read(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    assert member is not None
    return member.read()


def test_manifest_config_and_layer_belong_together(tmp_path: Path) -> None:
    with tarfile.open(pack(tmp_path, "image.tar")) as tar:
        (manifest,) = json.loads(read(tar, "manifest.json"))
        config = json.loads(read(tar, manifest["Config"]))
        layer = read(tar, manifest["Layers"][0])
    assert manifest["RepoTags"] == ["localhost/test/program:1"]
    assert config["config"]["Entrypoint"] == ["/program", "--flag"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as inner:
        assert inner.getmember("program").mode == 0o755
        assert read(inner, "program") == b"\x7fELF"


def test_packing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    assert pack(tmp_path, "one.tar").read_bytes() == pack(tmp_path, "two.tar").read_bytes()
