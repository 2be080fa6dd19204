"""`lorafleet push` into a real registry, and what engines make of it; signatures against OpenSSF's own tool."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from e2e.cluster.machine import install_packages
from lorafleet_contracts.admin import ProblemCode
from lorafleet_contracts.digest import adapter_files, folder_digest
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.fetching import fetch_adapter
from lorafleet_engine.loader.origin import Credentials, Origin
from lorafleet_engine.loader.registry import Registry, read_reference
from lorafleet_engine.loader.signatures import SIGNATURE, check_signature
from lorafleet_engine.loader.sources import open_folder
from lorafleet_engine.push.command import register
from tests.support.authority import Authority, make_authority
from tests.support.source_servers import PASSWORD, USER, docker_config, run_registry


def main(arguments: list[str]) -> int:
    """Run the command as `lorafleet` does."""
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))


LOGIN = Credentials(username=USER, password=PASSWORD)


class Key:
    """A private key in a file, and its public half in PEM."""

    def __init__(self, path: Path, curve: ec.EllipticCurve) -> None:
        private = ec.generate_private_key(curve)
        self.path = path
        path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def registry(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    install_packages(("docker-registry",))
    with run_registry(tmp_path_factory.mktemp("registry"), authority) as host:
        yield host


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "support"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 9000)
    (folder / "training.log").write_text("counts for nothing")
    return folder


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return Key(tmp_path / "signer.pem", ec.SECP256R1())


Push = Callable[..., tuple[int, str, str]]


@pytest.fixture
def push(
    registry: str,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Push:
    """Run the command; exit code, output and errors."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text(authority.bundle)
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(docker_config(registry))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))

    def run(folder: Path, target: str, *options: str) -> tuple[int, str, str]:
        code = main(["push", str(folder), target, "--ca-bundle", str(bundle), *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def pull(uri: str, authority: Authority, target: Path, login: Credentials = LOGIN) -> str:
    target.mkdir()
    origin = Origin(uri, ca_bundle=authority.bundle, credentials=login)
    with closing(open_folder(origin, target)) as folder:
        digest = fetch_adapter(folder, target, 1 << 30)
        folder.fetch(SIGNATURE, target / SIGNATURE, 1 << 20)
    return digest


@pytest.mark.heavy
def test_what_is_pushed_is_what_engines_fetch(
    push: Push, registry: str, adapter: Path, key: Key, authority: Authority, tmp_path: Path
) -> None:
    target = f"oci://{registry}/acme/support:v7"
    code, printed, errors = push(adapter, target, "--key", str(key.path), "--pool", "smol")
    assert (code, errors) == (0, "")

    source = yaml.safe_load(printed)["spec"]["source"]
    assert source["digest"] == folder_digest(adapter, adapter_files(adapter))
    assert source["uri"].startswith(f"oci://{registry}/acme/support@sha256:")
    assert pull(source["uri"], authority, tmp_path / "by-digest") == source["digest"]
    assert pull(target, authority, tmp_path / "by-tag") == source["digest"]
    check_signature(tmp_path / "by-digest", [key.public])
    assert not (tmp_path / "by-digest" / "training.log").exists()
    # Once more sends nothing anew, and is the same artifact.
    again = push(adapter, f"oci://{registry}/acme/support")
    assert again[0] == 0


@pytest.mark.heavy
def test_a_registry_s_denials_and_gaps_are_told(
    push: Push, registry: str, adapter: Path, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push(adapter, f"oci://{registry}/acme/other:v1")[0] == 0
    for number, (uri, login, code) in enumerate(
        (
            (f"oci://{registry}/acme/other:v1", Credentials(), ProblemCode.SOURCE_DENIED),
            (f"oci://{registry}/acme/other:v1", Credentials(username=USER, password="no"), ProblemCode.SOURCE_DENIED),
            (f"oci://{registry}/acme/other:v2", LOGIN, ProblemCode.SOURCE_UNREACHABLE),
            (f"oci://{registry}/acme/other@sha256:{'0' * 64}", LOGIN, ProblemCode.SOURCE_UNREACHABLE),
        )
    ):
        with pytest.raises(JobError) as caught:
            pull(uri, authority, tmp_path / str(number), login)
        assert caught.value.code == code
        assert PASSWORD not in caught.value.message
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "absent"))
    code, printed, errors = push(adapter, f"oci://{registry}/acme/denied:v1")
    assert (code, printed) == (1, "")
    assert "docker login" in errors


@pytest.mark.heavy
def test_other_bytes_than_the_manifest_names_are_refused(
    push: Push, registry: str, adapter: Path, authority: Authority, tmp_path: Path
) -> None:
    """The registry's store is tampered with behind its back."""
    assert push(adapter, f"oci://{registry}/acme/tampered:v1")[0] == 0
    (adapter / "adapter_config.json").write_text('{"of": "tampered"}')
    assert push(adapter, f"oci://{registry}/acme/tampered:v2")[0] == 0
    store = next(path for path in tmp_path.parent.parent.glob("**/registry*/store") if path.is_dir())
    sent = next(path for path in store.glob("**/blobs/sha256/*/*/data") if path.read_bytes() == b'{"of": "tampered"}')
    sent.write_bytes(b'{"of": "TAMPERED"}')
    with pytest.raises(JobError, match=r"other bytes of adapter_config\.json"):
        pull(f"oci://{registry}/acme/tampered:v2", authority, tmp_path / "t")


class Endless(httpx.SyncByteStream):
    """A body that nobody should begin to read."""

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("somebody reads it")


def test_a_token_service_is_asked_for_a_token_of_this_repository(tmp_path: Path) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.url.host == "auth.test":
            return httpx.Response(200, stream=httpx.ByteStream(b'{"token": "t-1", "expires_in": 300}'))
        if request.url.path == "/v2/":
            challenge = 'Bearer realm="https://auth.test/token",service="reg.test"'
            return httpx.Response(401, headers={"www-authenticate": challenge}, stream=Endless())
        if request.headers.get("authorization") != "Bearer t-1":
            return httpx.Response(401, stream=httpx.ByteStream(b""))
        return httpx.Response(200, stream=httpx.ByteStream(b'{"layers": []}'))

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        registry = Registry(read_reference("oci://reg.test/acme/a:v1"), client, LOGIN)
        assert registry.manifest() == {"layers": []}
        assert registry.manifest() == {"layers": []}
    tokens = [each for each in asked if each.url.host == "auth.test"]
    assert [dict(each.url.params) for each in tokens] == [{"service": "reg.test", "scope": "repository:acme/a:pull"}]
    assert tokens[0].headers["authorization"].startswith("Basic ")


def test_a_token_service_without_tls_gets_no_password() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.scheme == "https"
        return httpx.Response(401, headers={"www-authenticate": 'Bearer realm="http://auth.test/token"'})

    with httpx.Client(transport=httpx.MockTransport(answer)) as client, pytest.raises(JobError) as caught:
        Registry(read_reference("oci://reg.test/acme/a:v1"), client, LOGIN).manifest()
    assert caught.value.code == ProblemCode.SOURCE_FORBIDDEN


def test_a_folder_that_is_no_adapter_and_a_key_that_is_none_are_told(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k").write_text("no key")
    assert main(["push", str(adapter), "oci://reg.test/acme/a:v1", "--key", str(tmp_path / "k")]) == 1
    assert "no private key in PEM" in capsys.readouterr().err
    assert main(["push", str(tmp_path), "oci://reg.test/acme/a:v1"]) == 1
    assert "adapter_config.json is missing" in capsys.readouterr().err
    assert main(["push", str(adapter), "https://reg.test/acme/a"]) == 1
    assert "oci://REGISTRY/REPOSITORY" in capsys.readouterr().err
