"""TLS to clients: a Secret renewed under traffic, no request or connection lost; a certificate of the operator's."""

import base64
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from e2e.assets.styles import ANSWER_TOKENS, UNSEEN, style_of
from e2e.cluster.certificates import Authority
from e2e.fleet import NAMESPACE, Fleet, forwarded
from e2e.quickstart import Keys
from e2e.traffic import repeating
from e2e.waiting import wait_until

SECRET = "lorafleet-e2e-tls"
OWN = "lorafleet-gateway-tls"
RENEWED_SECONDS = 180.0
"""The kubelet looks at mounted Secrets once in about a minute."""


@dataclass(frozen=True, slots=True)
class Site:
    """The gateway behind TLS, and who signs for it."""

    fleet: Fleet
    authority: Authority
    address: str
    key: str = field(repr=False)

    @property
    def trust(self) -> ssl.SSLContext:
        """What a client trusts: the authority and nobody else."""
        return ssl.create_default_context(cafile=str(self.authority.certificate))

    def open(self) -> httpx.Client:
        """A tenant's client; it connects at its first request and stays connected."""
        headers = {"authorization": f"Bearer {self.key}"}
        kept = httpx.Limits(keepalive_expiry=None)
        return httpx.Client(base_url=self.address, verify=self.trust, headers=headers, timeout=60, limits=kept)

    def certified(self) -> str:
        """The name in the certificate that a new connection is shown."""
        place = urlsplit(self.address)
        with (
            socket.create_connection((place.hostname, place.port), timeout=10) as plain,
            self.trust.wrap_socket(plain, server_hostname=place.hostname) as wrapped,
        ):
            found = wrapped.getpeercert()
        assert found
        return str(dict(part for parts in found["subject"] for part in parts)["commonName"])  # type: ignore[misc]


def put_certificate(fleet: Fleet, authority: Authority, name: str) -> None:
    """Renew the Secret with a certificate for `name`."""
    pair = authority.issue(name, f"/CN={name}", ["IP:127.0.0.1"])
    files = {"tls.crt": pair.certificate, "tls.key": pair.key}
    data = {file: base64.b64encode(path.read_bytes()).decode() for file, path in files.items()}
    head = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls"}
    fleet.apply({**head, "metadata": {"name": SECRET, "namespace": NAMESPACE}, "data": data})


def ask(client: httpx.Client) -> tuple[str | None, object]:
    """The style of an answer, and which connection it came over."""
    body = {"model": "pirate", "messages": [{"role": "user", "content": UNSEEN[0]}], "temperature": 0}
    answer = client.post("/v1/chat/completions", json=body | {"max_tokens": ANSWER_TOKENS}).raise_for_status()
    connection = answer.extensions["network_stream"].get_extra_info("client_addr")
    return style_of(answer.json()["choices"][0]["message"]["content"]), connection


def ask_anew(site: Site) -> str:
    """Ask over a new connection; gives what was wrong."""
    with site.open() as client:
        style, _ = ask(client)
    return "" if style == "pirate" else f"answered in style {style}"


@pytest.fixture
def site(fleet: Fleet, keys: Keys, tmp_path: Path) -> Iterator[Site]:
    authority = Authority(tmp_path / "authority")
    authority.create()
    put_certificate(fleet, authority, "first")
    fleet.install(f"gateway.tls.secretName={SECRET}")
    service = fleet.get("service", "lorafleet-gateway", NAMESPACE)
    assert service
    (port,) = [each["port"] for each in service["spec"]["ports"] if each["name"] == "https"]
    with forwarded(fleet.kubectl, "svc/lorafleet-gateway", port, NAMESPACE) as address:
        yield Site(fleet, authority, address.replace("http:", "https:"), keys.acme)
    fleet.install()
    fleet.delete("secret", SECRET, NAMESPACE)


def test_a_renewed_certificate_is_taken_under_traffic(site: Site) -> None:
    assert site.certified() == "first"
    with site.open() as kept, repeating([lambda _: ask_anew(site)]) as seen:
        before = ask(kept)
        put_certificate(site.fleet, site.authority, "second")
        waited = wait_until(
            lambda: site.certified() == "second", seconds=RENEWED_SECONDS, what="the new certificate is shown", pause=1
        )
        assert ask(kept) == before, "the connection of before stays"
    print(f"\nthe new certificate is shown after {waited:.0f} s; {seen.right} answers meanwhile")
    assert seen.right > 1
    assert not seen.wrong


@pytest.fixture
def own(fleet: Fleet, keys: Keys) -> Iterator[list[str]]:
    """Settings with which the operator makes a certificate, there being no cert-manager; installed."""
    settings = ["gateway.tls.certificate.enabled=true", "gateway.tls.certificate.ipAddresses={127.0.0.1}"]
    fleet.install(*settings)
    yield settings
    fleet.install()


@pytest.mark.long
def test_the_operators_own_certificate_serves_and_is_kept_by_an_upgrade(
    fleet: Fleet, keys: Keys, own: list[str], tmp_path: Path
) -> None:
    made = fleet.get("secret", OWN, NAMESPACE)
    assert made
    authority = tmp_path / "ca.crt"
    authority.write_bytes(base64.b64decode(made["data"]["ca.crt"]))
    with forwarded(fleet.kubectl, "svc/lorafleet-gateway", 8080, NAMESPACE) as address:
        trust = ssl.create_default_context(cafile=str(authority))
        headers = {"authorization": f"Bearer {keys.acme}"}
        with httpx.Client(base_url=address.replace("http:", "https:"), verify=trust, headers=headers) as client:
            assert client.get("/v1/models").status_code == 200
    fleet.install(*own, "operator.logLevel=DEBUG")
    kept = fleet.get("secret", OWN, NAMESPACE)
    assert kept
    assert kept["data"] == made["data"]
