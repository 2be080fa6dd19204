"""The authority's Secret, the roots to trust and the gateway's certificate: made, taken as they are, or left alone."""

import base64
import logging
import time
from typing import Any

import pytest
from cryptography import x509

from lorafleet_contracts.names import ENGINE_CA, ENGINE_CA_KEY
from lorafleet_kube.errors import ApiError
from lorafleet_operator.shell.authority import EngineAuthority, GatewayCertificate, Home
from lorafleet_operator.shell.certificates import make_authority
from lorafleet_operator.shell.cluster import Cluster
from lorafleet_operator.shell.metrics import Metrics
from lorafleet_operator.shell.trust import Trust
from tests.support.fleet import make_meta

NOW = time.time()
GATEWAY = GatewayCertificate("gateway", ("llm.example.org",), ("10.0.0.1",))
CA, ROOTS = f"/api/v1/namespaces/system/secrets/{ENGINE_CA}", f"/api/v1/namespaces/system/configmaps/{ENGINE_CA}"
GATEWAYS = "/api/v1/namespaces/system/secrets/gateway"
OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "operator", "uid": "u"}


class Api:
    """The API server, with objects by path."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []

    async def get(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise ApiError(404, "NotFound", path)
        return self.objects[path]

    async def apply(self, path: str, body: dict[str, Any], *, manager: str, force: bool) -> dict[str, Any]:
        self.writes.append(path)
        self.objects[path] = body
        return body


class Leading:
    def check(self) -> None:
        """Always."""


async def owners() -> list[dict[str, Any]]:
    return [OWNER]


def build(api: Api, *, makes: bool = True) -> tuple[EngineAuthority, Trust, Metrics]:
    trust, metrics = Trust(), Metrics()
    home = Home("system", owners, makes, GATEWAY)
    cluster = Cluster(api, Leading())  # type: ignore[arg-type]  # only apply() is used
    return EngineAuthority((api, cluster), home, trust, metrics), trust, metrics  # type: ignore[arg-type]


def secret(chain: str, key: str, **labels: str) -> dict[str, Any]:
    data = {"tls.crt": chain, "tls.key": key}
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}
    return {"metadata": {"labels": labels}, "data": encoded}


def part(found: dict[str, Any], entry: str) -> str:
    return base64.b64decode(found["data"][entry]).decode()


async def test_the_first_look_makes_everything_and_the_next_ones_and_other_leaders_write_nothing() -> None:
    api = Api()
    authority, trust, _ = build(api)
    await authority.look(list, NOW)

    assert api.writes == [CA, ROOTS, GATEWAYS]
    assert all(each["metadata"]["ownerReferences"] == [OWNER] for each in api.objects.values())
    assert api.objects[ROOTS]["data"][ENGINE_CA_KEY] == part(api.objects[CA], "tls.crt")
    served = x509.load_pem_x509_certificate(part(api.objects[GATEWAYS], "tls.crt").encode())
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["llm.example.org"]
    assert trust.known.is_set()

    other, _, _ = build(api)
    pool = make_meta("smol")
    for each in (authority, other):
        await each.look(list, NOW)
    assert len(api.writes) == 3
    tls = authority.tls_of(pool)
    assert (tls.certificate is not None, tls.roots) == (True, part(api.objects[CA], "tls.crt"))
    assert other.tls_of(pool) == tls, "it follows from the authority"
    assert authority.tls_of(make_meta("other")).certificate != tls.certificate


async def test_an_authority_of_somebody_elses_is_waited_for_and_taken(caplog: pytest.LogCaptureFixture) -> None:
    api = Api()
    authority, _, metrics = build(api, makes=False)
    await authority.look(list, NOW)
    await authority.look(list, NOW)
    assert (authority.tls_of(make_meta("smol")).certificate, api.writes) == (None, [])
    assert [each.levelno for each in caplog.records if "cert-manager" in each.message] == [logging.ERROR]

    api.objects[CA] = secret(*make_authority(NOW - 9 * 365 * 86_400))
    await authority.look(list, NOW)
    assert api.writes == [ROOTS, GATEWAYS], "nor renewed, though it is old"
    assert authority.tls_of(make_meta("smol")).certificate is not None
    assert b"authority_expires_timestamp_seconds 0.0" not in metrics.render()


async def test_a_broken_authority_issues_nothing_and_what_was_trusted_stays(caplog: pytest.LogCaptureFixture) -> None:
    api = Api()
    authority, _, metrics = build(api)
    await authority.look(list, NOW)
    written, roots = list(api.writes), api.objects[ROOTS]
    api.objects[CA] = secret("nonsense", "", **api.objects[CA]["metadata"]["labels"])
    await authority.look(list, NOW)
    await authority.look(list, NOW)

    assert (api.writes, api.objects[ROOTS]) == (written, roots)
    assert authority.tls_of(make_meta("smol")).certificate is None
    assert len([each for each in caplog.records if "delete it to have one made anew" in each.message]) == 1
    assert b"authority_expires_timestamp_seconds 0.0" in metrics.render()


async def test_a_gateways_secret_that_the_operator_did_not_make_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api = Api()
    api.objects[GATEWAYS] = secret("theirs", "theirs", **{"app.kubernetes.io/managed-by": "Helm"})
    authority, _, _ = build(api)
    await authority.look(list, NOW)
    assert GATEWAYS not in api.writes
    assert "was not made by the operator" in caplog.text
    del api.objects[GATEWAYS]
    await authority.look(list, NOW)
    assert api.writes[-1] == GATEWAYS


async def test_a_list_of_roots_that_is_none_is_written_anew() -> None:
    api = Api()
    authority, _, _ = build(api)
    await authority.look(list, NOW)
    api.objects[ROOTS] = {"data": {ENGINE_CA_KEY: "nonsense"}}
    await authority.look(list, NOW)
    assert api.objects[ROOTS]["data"][ENGINE_CA_KEY] == part(api.objects[CA], "tls.crt")
