"""What the loader may connect to, judged by the address itself and not by the name."""

import ipaddress
import socket
from collections.abc import Iterator
from contextlib import closing

import httpcore
import httpx
import pytest

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.egress import GuardedBackend, Reach, open_client

PUBLIC, PRIVATE = "93.184.215.14", "10.0.0.7"


def refusal(own: str, host: str, address: str, private: bool = False) -> str | None:
    return Reach(own, 443, private).refuse(host, 443, ipaddress.ip_address(address))


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_public_addresses_are_reached(address: str) -> None:
    assert refusal("models.example.com", "models.example.com", address) is None


@pytest.mark.parametrize("address", [PRIVATE, "172.20.1.1", "192.168.1.1", "100.64.0.1", "fd12::1"])
def test_private_addresses_take_a_rule_or_a_name_of_the_cluster(address: str) -> None:
    host = "models.example.com"
    assert "private: true" in (refusal(host, host, address) or "")
    assert refusal(host, host, address, private=True) is None
    for own in ("assets", "assets.demo.svc", "Assets.demo.svc.cluster.local."):
        assert refusal(own, own, address) is None
    # What a source's own host may, hosts it redirects to may not.
    assert refusal("assets", "cdn", address) is not None


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "169.254.169.254",
        "169.254.1.1",
        "fe80::1",
        "fd00:ec2::254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "198.18.0.1",
        "::1",
        "::",
        "::7f00:1",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::",
    ],
)
@pytest.mark.parametrize("host", ["assets", "models.example.com", "localhost"])
def test_no_rule_for_a_name_opens_these(address: str, host: str) -> None:
    assert refusal(host, host, address, private=True) is not None


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"), ("10.1.1.1", "10.1.1.1")])
def test_an_address_that_is_named_itself_is_reached(host: str, address: str) -> None:
    assert refusal(host, host, address) is None
    assert refusal("models.example.com", host, address) is not None
    # Another port of the same machine is another server.
    assert Reach(host, 443, False).refuse(host, 6443, ipaddress.ip_address(address)) is not None


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1"])
def test_odd_spellings_of_an_address_are_names(host: str) -> None:
    assert refusal(host, host, "127.0.0.1") is not None


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        yield listening


def test_the_client_judges_the_address_before_it_connects(listener: socket.socket) -> None:
    with closing(open_client(Reach("localhost", 80, True))) as client, pytest.raises(JobError) as caught:
        client.get(f"http://localhost:{listener.getsockname()[1]}/")

    assert caught.value.code == ProblemCode.SOURCE_FORBIDDEN
    with pytest.raises(BlockingIOError):
        listener.accept()


class Rebinding:
    """A name server whose answers change: a public address first, then this machine's."""

    def __init__(self) -> None:
        self.answers = iter([PUBLIC, "127.0.0.1"])

    def __call__(self, host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(self.answers), port))]


def test_a_name_is_resolved_once_and_its_judged_address_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the name resolved again to connect, the second answer would lead to this machine."""
    connected: list[str] = []

    def connect(address: tuple[str, int], *_: object, **__: object) -> socket.socket:
        connected.append(address[0])
        raise ConnectionRefusedError

    names = Rebinding()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    monkeypatch.setattr(socket, "create_connection", connect)
    backend = GuardedBackend(Reach("models.example.com", 80, False))

    with pytest.raises(httpcore.ConnectError):
        backend.connect_tcp("models.example.com", 80)
    assert connected == [PUBLIC]
    with pytest.raises(JobError):
        backend.connect_tcp("models.example.com", 80)
    assert connected == [PUBLIC]


def test_one_bad_address_among_good_ones_spoils_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, port, **_: [(socket.AF_INET, 1, 6, "", (each, port)) for each in (PUBLIC, "169.254.169.254")],
    )
    with pytest.raises(JobError, match="metadata"):
        GuardedBackend(Reach("models.example.com", 80, False)).connect_tcp("models.example.com", 80)


def test_a_bundle_without_certificates_is_refused() -> None:
    with pytest.raises(JobError, match="caBundle") as caught:
        open_client(Reach("h", 443, False), "no pem")
    assert caught.value.code == ProblemCode.INVALID_REQUEST


def test_no_proxy_of_the_environment_is_heeded(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
    with closing(open_client(Reach("127.0.0.1", 1, False))) as client, pytest.raises(httpx.ConnectError):
        client.get("http://127.0.0.1:1/")
    with pytest.raises(BlockingIOError):
        listener.accept()
