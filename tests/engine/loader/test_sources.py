import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.loader.sources import open_folder


class Files(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/m/config.json":
            self._answer(200, b"content")
        elif self.path == "/m/moved.json":
            self._answer(302, b"", location="http://169.254.169.254/secret")
        elif self.path == "/m/denied.json":
            self._answer(403, b"")
        elif self.path == "/m/short.json":
            self.send_response(200)
            self.send_header("content-length", "100")
            self.end_headers()
            self.wfile.write(b"half")
        elif self.path == "/m/dribbled.json":
            self._dribble()
        elif self.path == "/m/zipped.json":
            self._answer(200, b"zz", encoding="gzip")
        else:
            self._answer(404, b"")

    def _answer(self, status: int, body: bytes, location: str = "", encoding: str = "") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if location:
            self.send_header("location", location)
        if encoding:
            self.send_header("content-encoding", encoding)
        self.end_headers()
        self.wfile.write(body)

    def _dribble(self) -> None:
        """A byte now and then: every read succeeds, and it never ends."""
        self.send_response(200)
        self.send_header("content-length", "1000000")
        self.end_headers()
        try:
            for _ in range(200):
                self.wfile.write(b"x")
                time.sleep(0.05)
        except (BrokenPipeError, ConnectionResetError):
            return

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/m/"
        running.shutdown()
        thread.join()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volumes" / "models" / "m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("content")
    return folder


def code_of(uri: str, volume: Path, name: str, tmp_path: Path) -> ProblemCode:
    with pytest.raises(JobError) as caught:
        fetch(uri, volume, name, tmp_path)
    return caught.value.code


def fetch(uri: str, volume: Path, name: str, tmp_path: Path, limit: int = 100) -> str | None:
    with closing(open_folder(Origin(uri), volume.parents[1])) as folder:
        return folder.fetch(name, tmp_path / "target", limit)


def test_a_file_of_a_volume_is_copied_and_hashed(volume: Path, tmp_path: Path) -> None:
    sha = fetch("pvc://models/m", volume, "config.json", tmp_path)

    assert sha == hashlib.sha256(b"content").hexdigest()
    assert (tmp_path / "target").read_text() == "content"


def test_a_file_behind_http_is_copied_and_hashed(server: str, volume: Path, tmp_path: Path) -> None:
    sha = fetch(server.rstrip("/"), volume, "config.json", tmp_path)

    assert sha == hashlib.sha256(b"content").hexdigest()


@pytest.mark.parametrize("scheme", ["pvc", "http"])
def test_a_missing_file_is_none(server: str, volume: Path, tmp_path: Path, scheme: str) -> None:
    uri = server if scheme == "http" else "pvc://models/m"

    assert fetch(uri, volume, "absent.json", tmp_path) is None


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("moved.json", ProblemCode.SOURCE_FORBIDDEN),
        ("denied.json", ProblemCode.SOURCE_DENIED),
        ("short.json", ProblemCode.SOURCE_UNREACHABLE),
        ("zipped.json", ProblemCode.SOURCE_UNREACHABLE),
        ("../secret", ProblemCode.SOURCE_FORBIDDEN),
    ],
)
def test_http_answers_that_are_not_taken(
    server: str, volume: Path, tmp_path: Path, name: str, code: ProblemCode
) -> None:
    assert code_of(server, volume, name, tmp_path) == code


def test_a_source_that_dribbles_is_given_up(server: str, tmp_path: Path) -> None:
    with (
        closing(open_folder(Origin(server), tmp_path, grace=0.3)) as folder,
        pytest.raises(JobError, match="too slow; check the server") as caught,
    ):
        folder.fetch("dribbled.json", tmp_path / "target", 10_000_000)
    assert caught.value.code == ProblemCode.SOURCE_UNREACHABLE


def test_nobody_listening_is_unreachable(volume: Path, tmp_path: Path) -> None:
    assert code_of("http://127.0.0.1:1/m", volume, "config.json", tmp_path) == ProblemCode.SOURCE_UNREACHABLE


@pytest.mark.parametrize("scheme", ["pvc", "http"])
def test_a_file_above_its_limit_is_refused(server: str, volume: Path, tmp_path: Path, scheme: str) -> None:
    uri = server if scheme == "http" else "pvc://models/m"
    with pytest.raises(JobError) as caught:
        fetch(uri, volume, "config.json", tmp_path, limit=3)

    assert caught.value.code == ProblemCode.DOES_NOT_FIT


def test_a_link_inside_the_volume_is_followed(volume: Path, tmp_path: Path) -> None:
    (volume.parent / "blobs").mkdir()
    (volume.parent / "blobs" / "b").write_text("blob")
    (volume / "weights").symlink_to("../blobs/b")

    assert fetch("pvc://models/m", volume, "weights", tmp_path)


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../outside"])
def test_a_link_that_leaves_the_volume_is_refused(volume: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").write_text("secret")
    (volume / "weights").symlink_to(target)

    assert code_of("pvc://models/m", volume, "weights", tmp_path) == ProblemCode.SOURCE_FORBIDDEN


def test_a_folder_that_leaves_the_volume_is_refused(volume: Path, tmp_path: Path) -> None:
    (volume / "out").symlink_to("/etc")

    assert code_of("pvc://models/m/out", volume, "hostname", tmp_path) == ProblemCode.SOURCE_FORBIDDEN


def test_another_volume_s_folder_is_refused(volume: Path, tmp_path: Path) -> None:
    (volume.parents[1] / "other").mkdir()

    assert code_of("pvc://models/../other", volume, "x", tmp_path) == ProblemCode.SOURCE_FORBIDDEN


def test_a_fifo_is_refused_without_waiting(volume: Path, tmp_path: Path) -> None:
    os.mkfifo(volume / "weights")

    assert code_of("pvc://models/m", volume, "weights", tmp_path) == ProblemCode.SOURCE_FORBIDDEN


@pytest.mark.parametrize(
    "uri",
    [
        "ftp://host/m",
        "models/m",
        "file://host/m",
        "file:m",
        "http:///m",
        "http://user:pw@host/m",
        "http://host/m?x=1",
        "pvc:///m",
    ],
)
def test_other_uris_are_refused(volume: Path, tmp_path: Path, uri: str) -> None:
    assert code_of(uri, volume, "config.json", tmp_path) == ProblemCode.INVALID_REQUEST
