"""S3 sources: how a request is addressed and signed, and against a real S3 server (SeaweedFS)."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.origin import Credentials, Origin
from lorafleet_engine.loader.s3_site import S3Site
from lorafleet_engine.loader.sources import open_folder
from tests.support.source_servers import READER, S3Server, run_s3_server, sha_of

WEIGHTS = bytes(range(256)) * 9000


@pytest.mark.parametrize(
    ("origin", "url"),
    [
        (Origin("s3://acme/support/v7/"), "https://acme.s3.us-east-1.amazonaws.com/support/v7/f"),
        (Origin("s3://acme", region="eu-west-1"), "https://acme.s3.eu-west-1.amazonaws.com/f"),
        (Origin("s3://acme.models/a"), "https://s3.us-east-1.amazonaws.com/acme.models/a/f"),
        (Origin("s3://acme/a b", endpoint="https://s3.lab.test/"), "https://s3.lab.test/acme/a%20b/f"),
    ],
)
def test_objects_are_addressed_by_bucket_and_prefix(origin: Origin, url: str) -> None:
    assert S3Site(origin).url("f") == url


def test_a_request_is_signed_with_the_key_and_its_session_and_shows_no_secret() -> None:
    keys = Credentials("id", "the-secret", "session")
    site = S3Site(Origin("s3://acme/a", region="eu-west-1", credentials=keys))
    headers = site.headers("GET", site.url("f") or "")
    assert "/eu-west-1/s3/aws4_request" in headers["Authorization"]
    assert headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=id/")
    assert headers["x-amz-security-token"] == "session"
    assert "the-secret" not in str(headers)
    assert S3Site(Origin("s3://acme/a")).headers("GET", "https://x/") == {}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with run_s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.put("models/support/v7/adapter_config.json", b"{}")
        server.put("models/support/v7/adapter_model.safetensors", WEIGHTS)
        server.put("private")
        server.put("private/a/adapter_config.json", b"{}")
        yield server


@pytest.mark.heavy
def test_objects_of_a_real_server_are_fetched(s3: S3Server, tmp_path: Path) -> None:
    origin = Origin("s3://models/support/v7/", endpoint=s3.url, credentials=READER)
    with closing(open_folder(origin, tmp_path)) as folder:
        assert folder.fetch("adapter_config.json", tmp_path / "c", 100) == sha_of(b"{}")
        assert folder.fetch("chat_template.jinja", tmp_path / "t", 100) is None
        assert folder.fetch("adapter_model.safetensors", tmp_path / "w", 1 << 30) == sha_of(WEIGHTS)
        assert folder.changed() is None
        s3.put("models/support/v7/adapter_config.json", b'{"r": 8}')
        assert folder.changed() == "adapter_config.json"
        with pytest.raises(JobError) as caught:
            folder.fetch("adapter_model.safetensors", tmp_path / "v", 1000)
        assert caught.value.code == ProblemCode.DOES_NOT_FIT


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("uri", "keys"),
    [
        ("s3://private/a", READER),
        ("s3://models/support/v7", Credentials()),
        ("s3://models/support/v7", replace(READER, secret_access_key="wrong-secret")),
        ("s3://models/support/v7", Credentials("nobody", "none")),
    ],
)
def test_a_real_server_s_denial_says_what_to_do(uri: str, keys: Credentials, s3: S3Server, tmp_path: Path) -> None:
    with (
        closing(open_folder(Origin(uri, endpoint=s3.url, credentials=keys), tmp_path)) as folder,
        pytest.raises(JobError) as caught,
    ):
        folder.fetch("adapter_config.json", tmp_path / "c", 100)
    assert caught.value.code == ProblemCode.SOURCE_DENIED
    assert "s3:GetObject" in caught.value.message
    assert not any(word and word in caught.value.message for word in (keys.access_key_id, keys.secret_access_key))
