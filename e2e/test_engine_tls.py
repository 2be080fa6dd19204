"""TLS on the engines' ports: they speak nothing else, in their pool's name, and a new authority costs no request."""

import hashlib
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from urllib.parse import urlsplit

import pytest

from e2e.client import Client
from e2e.engines import POOL, Trust, find_trust, nudge, restarts
from e2e.fleet import DEMO, NAMESPACE, Fleet, Object, forwarded
from e2e.traffic import tapping
from e2e.waiting import wait_until
from lorafleet_contracts.names import (
    ENGINE_CA,
    ENGINE_CA_KEY,
    LABEL_POOL,
    SERVING_TLS_PORT,
    EnginePort,
    engine_server_name,
)

NAME = engine_server_name(DEMO, POOL)
CHANGED_SECONDS = 300.0
PATIENCE = 10.0


def engines(fleet: Fleet) -> list[Object]:
    """The pods of the quickstart's pool."""
    return fleet.list("pods", selector=f"{LABEL_POOL}={POOL}")


def expected(fleet: Fleet, pod: Object) -> Trust:
    """What the pod must prove."""
    found = find_trust(fleet, pod)
    assert found, f"{pod['metadata']['name']} is not marked as speaking TLS"
    return found


@contextmanager
def connected(fleet: Fleet, pod: Object, port: EnginePort) -> Iterator[socket.socket]:
    """A connection to a port of an engine, on which nothing was said yet."""
    with forwarded(fleet.kubectl, f"pod/{pod['metadata']['name']}", port, DEMO) as address:
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port), PATIENCE) as connection:
            yield connection


def answer_to_plain(fleet: Fleet, pod: Object, port: EnginePort) -> bytes:
    """What comes back for a request without TLS: some bytes or none."""
    with connected(fleet, pod, port) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: engine\r\n\r\n")
        try:
            return connection.recv(100)
        except ConnectionError:
            return b""


def shown(fleet: Fleet, pod: Object, port: EnginePort, trust: Trust) -> tuple[str, tuple[str, ...]]:
    """The SHA-256 of the certificate that a new connection is shown, and the names in it. Raises SSLError."""
    with (
        connected(fleet, pod, port) as connection,
        trust.context.wrap_socket(connection, server_hostname=trust.name) as tls,
    ):
        names = (tls.getpeercert() or {}).get("subjectAltName", ())
        certificate = tls.getpeercert(binary_form=True)
    return hashlib.sha256(certificate or b"").hexdigest(), tuple(str(each[1]) for each in names)


def published(fleet: Fleet) -> str:
    """The roots that gateways are told of."""
    found = fleet.get("configmap", ENGINE_CA, NAMESPACE)
    return str(found["data"][ENGINE_CA_KEY]) if found else ""


def test_no_port_of_an_engine_answers_without_tls_or_in_another_name(fleet: Fleet, acme: Client) -> None:
    for pod in engines(fleet):
        trust = expected(fleet, pod)
        foreign = Trust(engine_server_name(DEMO, "other"), trust.roots)
        for port in EnginePort:
            assert not answer_to_plain(fleet, pod, port).startswith(b"HTTP/")
            assert shown(fleet, pod, port, trust)[1] == (NAME,)
            with pytest.raises(ssl.SSLCertVerificationError):
                shown(fleet, pod, port, foreign)
    plain = [
        each["metadata"]["name"]
        for each in fleet.list("endpointslices", selector=f"{LABEL_POOL}={POOL}")
        if each["endpoints"] and SERVING_TLS_PORT not in {port["name"] for port in each["ports"] or ()}
    ]
    assert not plain, "the gateway would speak plain HTTP to these"
    acme.ask("pirate", "What is snow?", tokens=1)


@pytest.mark.long
def test_a_new_authority_costs_no_request(fleet: Fleet, acme: Client) -> None:
    pods = engines(fleet)
    roots, before, numbers = published(fleet), restarts(fleet), count()
    first = {pod["metadata"]["name"]: shown(fleet, pod, EnginePort.STATE, expected(fleet, pod))[0] for pod in pods}

    def changed() -> bool:
        """Whether the new authority is the only one that is trusted, and all engines show its certificates."""
        nudge(fleet, next(numbers))
        new = published(fleet)
        if new == roots or new.count("BEGIN CERTIFICATE") != 1:
            return False
        trust = Trust(NAME, new)
        return all(shown(fleet, pod, EnginePort.STATE, trust)[0] != first[pod["metadata"]["name"]] for pod in pods)

    with tapping(acme, "pirate", "shout") as seen:
        fleet.delete("secret", ENGINE_CA, NAMESPACE)
        waited = wait_until(changed, seconds=CHANGED_SECONDS, what="the new authority is the only one", pause=3)
        answered = seen.right
        wait_until(lambda: seen.wrong or seen.right > answered + 2, seconds=60, what="answers after the change")
    print(f"\nthe new authority is the only one after {waited:.0f} s; {seen.right} answers meanwhile")
    assert not seen.wrong
    assert restarts(fleet) == before
