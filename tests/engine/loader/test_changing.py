"""A source that changes while it is read: never a mixture of two versions, and read again once it rests."""

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lorafleet_contracts.admin import ProblemCode
from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_contracts.digest import adapter_files, folder_digest
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.jobs import Jobs
from lorafleet_engine.loader.messages import InspectAdapter, LoaderConfig
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.loader.sources import open_folder
from tests.engine.support.tiny import TinyModel


class Changing(ThreadingHTTPServer):
    """Serves `old` until `moves` weight files were asked for from it, then `new`."""

    def __init__(self, old: Path, new: Path, heads: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.old, self.new, self.heads, self.moves = old, new, heads, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Changing

    def do_GET(self) -> None:
        weights = self.path.endswith(".safetensors")
        if weights and self.server.moves > 0:
            self.server.moves -= 1
            self._answer(self.server.new, body=True)
            self.server.old = self.server.new
        else:
            self._answer(self.server.old, body=True)

    def do_HEAD(self) -> None:
        if self.server.heads:
            self._answer(self.server.old, body=False)
        else:
            self.send_error(405)

    def _answer(self, folder: Path, body: bool) -> None:
        path = folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.send_header("etag", hashlib.sha256(data).hexdigest())
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def versions(tiny: Callable[[str], TinyModel], tmp_path: Path) -> tuple[Path, Path]:
    """Two adapters of the same shapes; only their scales and numbers differ."""
    old, new = tmp_path / "volumes" / "v" / "old", tmp_path / "volumes" / "v" / "new"
    shutil.copytree(tiny("llama").adapters["all-r8"], old)
    shutil.copytree(old, new)
    config = new / "adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": 16', '"lora_alpha": 64'))
    weights = bytearray((new / "adapter_model.safetensors").read_bytes())
    weights[-1] ^= 1
    (new / "adapter_model.safetensors").write_bytes(weights)
    for file in old.iterdir():
        os.utime(file, (1e9, 1e9))  # a file system's clock may tick every few milliseconds only
    return old, new


@pytest.fixture
def jobs(tiny: Callable[[str], TinyModel], tmp_path: Path) -> Jobs:
    return Jobs(
        LoaderConfig(
            host_dir=str(tmp_path / "host"),
            host_bytes=1 << 24,
            disk_dir=str(tmp_path / "disk"),
            disk_bytes=1 << 26,
            volumes_dir=str(tmp_path / "volumes"),
            dtype="float32",
            base_names=("tiny",),
            target_modules=PROJECTIONS,
            base_dir=str(tiny("llama").directory),
        )
    )


@pytest.fixture
def server(versions: tuple[Path, Path]) -> Iterator[Changing]:
    with Changing(*versions, heads=True) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def inspect(jobs: Jobs, url: str, digest: str | None = None) -> str:
    return jobs.inspect(InspectAdapter(1, Origin(url), digest)).facts.digest


@pytest.mark.parametrize("declared", [False, True])
def test_a_mixture_is_not_taken(jobs: Jobs, server: Changing, versions: tuple[Path, Path], declared: bool) -> None:
    """The config of the old and the weights of the new: a legal adapter, and nobody's."""
    old = folder_digest(versions[0], adapter_files(versions[0]))
    server.moves = 1
    with pytest.raises(JobError, match=r"adapter_config\.json changed while the files were read") as caught:
        inspect(jobs, server.url, old if declared else None)
    assert caught.value.code == ProblemCode.SOURCE_UNREACHABLE, "which is tried again"
    assert not list(Path(jobs._disk.root, "adapters").iterdir())

    assert inspect(jobs, server.url) == folder_digest(versions[1], adapter_files(versions[1]))


def test_a_source_at_rest_that_is_another_is_a_mismatch(
    jobs: Jobs, server: Changing, versions: tuple[Path, Path]
) -> None:
    declared = folder_digest(versions[1], adapter_files(versions[1]))
    with pytest.raises(JobError) as caught:
        inspect(jobs, server.url, declared)
    assert caught.value.code == ProblemCode.DIGEST_MISMATCH


def test_a_server_without_heads_is_believed(jobs: Jobs, server: Changing) -> None:
    server.heads = False
    assert inspect(jobs, server.url)


def replace(file: Path) -> None:
    """As `mv` does, with the same size and times."""
    other, found = file.with_name("other"), file.stat()
    shutil.copy2(file, other)
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(file)


CHANGES: dict[str, Callable[[Path], object]] = {
    "written to": lambda file: file.write_bytes(file.read_bytes()),
    "replaced": replace,
    "removed": lambda file: file.unlink(),
    "grown": lambda file: file.write_bytes(file.read_bytes() + b" "),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_volume_s_file_that_changes_is_noticed(versions: tuple[Path, Path], tmp_path: Path, change: str) -> None:
    folder = open_folder(Origin("pvc://v/old"), tmp_path / "volumes")
    for name in ("adapter_config.json", "chat_template.jinja"):
        folder.fetch(name, tmp_path / name, 1 << 20)
    assert folder.changed() is None

    CHANGES[change](versions[0] / "adapter_config.json")

    assert folder.changed() == "adapter_config.json"


def test_a_file_that_appears_is_noticed(versions: tuple[Path, Path], tmp_path: Path) -> None:
    folder = open_folder(Origin("pvc://v/old"), tmp_path / "volumes")
    assert folder.fetch("chat_template.jinja", tmp_path / "target", 1 << 20) is None
    (versions[0] / "chat_template.jinja").write_text("x")

    assert folder.changed() == "chat_template.jinja"
