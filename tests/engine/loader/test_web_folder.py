"""Web servers that break off, redirect, deny and lie; what is said about it, and what is never said."""

import hashlib
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, unquote

import httpx
import pytest

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.hub_site import HubSite
from lorafleet_engine.loader.origin import Credentials, Origin
from lorafleet_engine.loader.sources import open_folder
from lorafleet_engine.loader.web_folder import WebFolder
from tests.support.authority import Authority, make_authority
from tests.support.scripted_server import Answer, Asked, serve

BODY = bytes(range(256)) * 40
SHA = hashlib.sha256(BODY).hexdigest()
TOKEN = "hf_secret-token"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"))


def fetch(origin: Origin, target: Path, name: str = "f", limit: int = 1 << 20) -> str | None:
    with closing(open_folder(origin, target.parent)) as folder:
        return folder.fetch(name, target, limit)


def problem(origin: Origin, target: Path) -> JobError:
    with pytest.raises(JobError) as caught:
        fetch(origin, target)
    assert TOKEN not in str(caught.value)
    return caught.value


def parts(asked: Asked, etag: str = '"one"', ranges: bool = True, cut: int | None = 3000) -> Answer:
    """A server that breaks off after `cut` bytes of every answer."""
    begin = asked.headers.get("range", "")
    if ranges and begin and asked.headers.get("if-range") == etag:
        first = int(begin.removeprefix("bytes=").rstrip("-"))
        span = {"etag": etag, "content-range": f"bytes {first}-{len(BODY) - 1}/{len(BODY)}"}
        return Answer(206, BODY[first:], span, cut)
    return Answer(200, BODY, {"etag": etag}, cut)


def test_a_file_that_breaks_off_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    with serve(parts) as server:
        assert fetch(Origin(server.url), tmp_path / "f") == SHA

    assert (tmp_path / "f").read_bytes() == BODY
    assert [each.headers.get("range") for each in server.asked] == [None, "bytes=3000-", "bytes=6000-", "bytes=9000-"]


@pytest.mark.parametrize("name", ["%2e%2e%2fothers%2ff", "f?of=others", "f#others", "f%00", "a b"])
def test_a_file_s_name_is_no_more_than_a_name(tmp_path: Path, name: str) -> None:
    with serve(lambda asked: Answer(404)) as server:
        assert fetch(Origin(f"{server.url}/own"), tmp_path / "f", name) is None
        assert [unquote(each.path) for each in server.asked] == [f"/own/{name}"]
        assert [each.path.removeprefix("/own/").strip("/?#") for each in server.asked] == [quote(name, safe="")]


def test_a_file_that_changed_meanwhile_begins_anew(tmp_path: Path) -> None:
    etags = iter(['"one"', '"two"'])
    cuts = iter([3000, None])
    with serve(lambda asked: parts(asked, next(etags), cut=next(cuts))) as server:
        assert fetch(Origin(server.url), tmp_path / "f") == SHA
    assert (tmp_path / "f").read_bytes() == BODY


def test_a_server_without_ranges_is_given_up_after_some_attempts(tmp_path: Path) -> None:
    with serve(lambda asked: parts(asked, ranges=False)) as server:
        told = problem(Origin(server.url), tmp_path / "f")
    assert (told.code, len(server.asked)) == (ProblemCode.SOURCE_UNREACHABLE, 4)
    assert "broke f off after 3000 bytes" in told.message


def test_another_part_than_asked_for_is_refused(tmp_path: Path) -> None:
    def lie(asked: Asked) -> Answer:
        if "range" not in asked.headers:
            return parts(asked)
        return Answer(206, BODY[:10], {"etag": '"one"', "content-range": f"bytes 0-9/{len(BODY)}"})

    with serve(lie) as server:
        assert "another part" in problem(Origin(server.url), tmp_path / "f").message


def test_a_file_that_announces_too_much_is_not_begun(tmp_path: Path) -> None:
    with serve(lambda _: Answer(200, BODY)) as server, pytest.raises(JobError) as caught:
        fetch(Origin(server.url), tmp_path / "f", limit=100)
    assert caught.value.code == ProblemCode.DOES_NOT_FIT
    assert not (tmp_path / "f").read_bytes()


def test_a_certificate_nobody_trusts_is_told_as_such(authority: Authority, tmp_path: Path) -> None:
    with serve(lambda _: Answer(200, BODY), authority.server_context()) as server:
        told = problem(Origin(server.url), tmp_path / "f")
        assert (told.code, server.asked) == (ProblemCode.SOURCE_UNREACHABLE, [])
        assert "sources.caBundle" in told.message
        assert fetch(Origin(server.url, ca_bundle=authority.bundle), tmp_path / "g") == SHA


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, ProblemCode.SOURCE_DENIED, "credentialsSecretRef"),
        (403, ProblemCode.SOURCE_DENIED, "credentialsSecretRef"),
        (302, ProblemCode.SOURCE_FORBIDDEN, "not followed"),
        (500, ProblemCode.SOURCE_UNREACHABLE, "HTTP 500"),
    ],
)
def test_refusals_say_what_to_do_and_quote_nothing(status: int, code: ProblemCode, words: str, tmp_path: Path) -> None:
    answer = Answer(status, b"<script>", {"location": "http://169.254.169.254/"})
    with serve(lambda _: answer) as server:
        told = problem(Origin(server.url, credentials=Credentials(token=TOKEN)), tmp_path / "f")
    assert told.code == code
    assert words in told.message
    assert "script" not in told.message
    assert server.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_credentials_are_never_printed() -> None:
    origin = Origin("https://a/b", credentials=Credentials("id-1", "key-1", "session-1", TOKEN, "user-1", "pass-1"))
    assert all(word not in repr(origin) for word in ("id-1", "key-1", "session-1", TOKEN, "user-1", "pass-1"))
    assert TOKEN not in repr(origin.credentials)


COMMIT = "0123456789abcdef" * 2 + "01234567"


class Hub:
    """The Hub's protocol, as far as a file of a revision takes it; large files redirect to another host."""

    def __init__(self) -> None:
        self.store = ""

    def __call__(self, asked: Asked) -> Answer:
        if asked.headers.get("authorization") != f"Bearer {TOKEN}":
            return Answer(401, b"{}", {"x-error-code": "GatedRepo"})
        match asked.path:
            case "/api/models/acme/support/revision/v7":
                return Answer(200, b'{"sha": "%s"}' % COMMIT.encode())
            case path if path == f"/acme/support/resolve/{COMMIT}/f":
                return Answer(200, BODY)
            case path if path == f"/acme/support/resolve/{COMMIT}/large":
                return Answer(302, b"", {"location": f"{self.store}/blob"})
        return Answer(404, b"", {"x-error-code": "EntryNotFound"})


def hub_origin(url: str, revision: str = "v7", **more: object) -> Origin:
    return Origin(f"hf://acme/support@{revision}", endpoint=url, credentials=Credentials(token=TOKEN), **more)  # type: ignore[arg-type]


def test_files_of_the_hub_are_all_of_one_commit(tmp_path: Path) -> None:
    with serve(Hub()) as server, closing(open_folder(hub_origin(server.url), tmp_path)) as folder:
        assert folder.fetch("f", tmp_path / "f", 1 << 20) == SHA
        assert folder.fetch("absent", tmp_path / "absent", 1 << 20) is None
    assert server.paths[0] == "GET /api/models/acme/support/revision/v7"
    assert server.paths[1:] == [f"GET /acme/support/resolve/{COMMIT}/{name}" for name in ("f", "absent")]


def test_the_hub_s_denials_say_what_to_do(tmp_path: Path) -> None:
    with serve(Hub()) as server:
        told = problem(Origin("hf://acme/support@v7", endpoint=server.url), tmp_path / "f")
        assert told.code == ProblemCode.SOURCE_DENIED
        assert "token that may read it" in told.message
        told = problem(hub_origin(server.url, "gone"), tmp_path / "f")
        assert told.code == ProblemCode.SOURCE_UNREACHABLE
        assert "no revision gone" in told.message


def test_a_redirect_of_the_hub_reaches_no_inner_host(authority: Authority, tmp_path: Path) -> None:
    hub, tls = Hub(), authority.server_context()
    with serve(hub, tls) as server, serve(lambda _: Answer(200, BODY), tls) as inner:
        origin = hub_origin(server.url, ca_bundle=authority.bundle)
        port = inner.url.rpartition(":")[2]
        for number, target in enumerate((inner.url, f"https://localhost:{port}", "https://169.254.169.254")):
            hub.store = target
            with closing(open_folder(origin, tmp_path)) as folder, pytest.raises(JobError) as caught:
                folder.fetch("large", tmp_path / str(number), 1 << 20)
            assert caught.value.code == ProblemCode.SOURCE_FORBIDDEN
        hub.store = inner.url.replace("https", "http")
        with closing(open_folder(origin, tmp_path)) as folder, pytest.raises(JobError, match="without TLS"):
            folder.fetch("large", tmp_path / "y", 1 << 20)
    assert inner.asked == []


def test_another_host_gets_no_token(tmp_path: Path) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.url.path.startswith("/api/"):
            return httpx.Response(200, stream=httpx.ByteStream(b'{"sha": "%s"}' % COMMIT.encode()))
        if request.url.host == "hub.test":
            return httpx.Response(302, headers={"location": "https://cdn.test/blob"})
        return httpx.Response(200, stream=httpx.ByteStream(BODY))

    client = httpx.Client(transport=httpx.MockTransport(answer))
    site = HubSite(hub_origin("https://hub.test"), client)
    with closing(WebFolder(site, client)) as folder:
        assert folder.fetch("large", tmp_path / "large", 1 << 20) == SHA
    assert [("authorization" in each.headers, each.url.host) for each in asked] == [
        (True, "hub.test"),
        (True, "hub.test"),
        (False, "cdn.test"),
    ]


@pytest.mark.parametrize(
    "uri",
    [
        "hf://acme/support/sub@v7",
        "hf://acme/support@../../x",
        "hf://acme",
        "hf://ac me/support",
        "s3://B/x",
        "s3://a..b@c/x",
        "oci://reg.test/Acme/a:v7",
        "oci://reg.test/acme/a@sha256:12",
        "oci://reg.test:port/acme/a",
        "https://[::1/x",
    ],
)
def test_uris_that_name_no_place_are_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught, closing(open_folder(Origin(uri), tmp_path)) as folder:
        folder.fetch("f", tmp_path / "f", 100)
    assert caught.value.code in (ProblemCode.INVALID_REQUEST, ProblemCode.SOURCE_FORBIDDEN)
