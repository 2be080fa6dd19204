"""Certificates: cert-manager's CRDs accept what the chart asks it for; without it the operator is told what to make."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.commands import run
from lorafleet_contracts.names import ENGINE_CA
from tests.chart.conftest import CHART, Kubectl, Render, helm

pytestmark = pytest.mark.apiserver
CERT_MANAGER = "github.com/cert-manager/cert-manager@v1.21.2"
API = "cert-manager.io/v1"
ENABLED = "gateway.tls.certificate.enabled=true"
SERVICE = "lorafleet-gateway.lorafleet-system"
NAMES = ["lorafleet-gateway", SERVICE, f"{SERVICE}.svc", f"{SERVICE}.svc.cluster.local"]


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def mounted(documents: list[dict[str, Any]]) -> str:
    """The Secret that Envoy reads its certificate from."""
    pod = of_kind(documents, "Deployment")["lorafleet-gateway"]["spec"]["template"]["spec"]
    (secret,) = (each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == "tls")
    return str(secret)


def apply_definitions(kubectl: Kubectl, scratch: Path, *kinds: str) -> None:
    """cert-manager's own definitions of these kinds, out of its module."""
    told = run(["go", "mod", "download", "-json", CERT_MANAGER], cwd=scratch)
    folder = Path(json.loads(told)["Dir"]) / "deploy" / "crds"
    for kind in kinds:
        kubectl("apply", "--server-side", "-f", folder / f"cert-manager.io_{kind}.yaml")
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


@pytest.fixture(scope="module")
def cert_manager(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is needed of cert-manager's own definitions."""
    apply_definitions(kubectl, tmp_path_factory.mktemp("module"), "certificates", "issuers")


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ((), {"Certificate": 2, "Issuer": 2}),
        (
            (
                "gateway.tls.certificate.issuerRef.name=letsencrypt",
                "gateway.tls.certificate.issuerRef.kind=ClusterIssuer",
                "gateway.tls.certificate.dnsNames={llm.example.org}",
                "gateway.tls.certificate.ipAddresses={10.0.0.1}",
                "gateway.tls.secretName=mine",
            ),
            {"Certificate": 1, "Issuer": 0},
        ),
    ],
)
def test_cert_manager_takes_it_and_envoy_reads_what_it_writes(
    render: Render, kubectl: Kubectl, cert_manager: None, settings: tuple[str, ...], kinds: dict[str, int]
) -> None:
    documents = render(ENABLED, "gateway.tls.certificate.by=CertManager", *settings)
    asked = [each for each in documents if each["apiVersion"] == API]
    kubectl("apply", "-f", "-", stdin="{apiVersion: v1, kind: Namespace, metadata: {name: lorafleet-system}}")
    words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-n", "lorafleet-system", "-f", "-")
    kubectl(*words, stdin=yaml.safe_dump_all(asked))

    assert {kind: len(of_kind(asked, kind)) for kind in kinds} == kinds
    certificate = of_kind(documents, "Certificate")["lorafleet-gateway"]["spec"]
    assert certificate["secretName"] == mounted(documents)
    assert certificate["dnsNames"][:4] == NAMES
    assert not of_kind(documents, "Secret")
    ports = of_kind(documents, "Service")["lorafleet-gateway"]["spec"]["ports"]
    assert [each["targetPort"] for each in ports] == ["api-tls"], "no plain port for clients"
    issuer = certificate["issuerRef"]["name"]
    if not settings:
        authority = of_kind(documents, "Issuer")[issuer]["spec"]["ca"]["secretName"]
        assert of_kind(documents, "Certificate")["lorafleet-gateway-ca"]["spec"]["secretName"] == authority
    else:
        assert (issuer, certificate["dnsNames"][4:]) == ("letsencrypt", ["llm.example.org"])


def test_the_authority_of_engines_is_its_own_root(render: Render, kubectl: Kubectl, cert_manager: None) -> None:
    documents = render("engine.authority.by=CertManager")
    asked = [each for each in documents if each["apiVersion"] == API]
    kubectl("apply", "-f", "-", stdin="{apiVersion: v1, kind: Namespace, metadata: {name: lorafleet-system}}")
    words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-n", "lorafleet-system", "-f", "-")
    kubectl(*words, stdin=yaml.safe_dump_all(asked))
    (certificate,) = of_kind(asked, "Certificate").values()
    (issuer,) = of_kind(asked, "Issuer").values()
    assert (certificate["spec"]["secretName"], certificate["spec"]["isCA"]) == (ENGINE_CA, True)
    assert certificate["spec"]["issuerRef"]["name"] == issuer["metadata"]["name"]
    assert issuer["spec"] == {"selfSigned": {}}, "whoever trusts engines trusts this certificate and none above it"


def told(documents: list[dict[str, Any]]) -> dict[str, str]:
    """What the operator is told in its environment."""
    (container,) = of_kind(documents, "Deployment")["lorafleet-operator"]["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_auto_is_cert_manager_where_the_cluster_has_it() -> None:
    words = ("template", "lorafleet", CHART, "--namespace", "lorafleet-system", "--set", ENABLED)
    for present, makers in ((("--api-versions", API), {"CertManager"}), ((), {"Operator"})):
        documents = list(filter(None, yaml.safe_load_all(helm(*words, *present).stdout)))
        names = set(of_kind(documents, "Certificate"))
        environment = told(documents)
        if makers == {"CertManager"}:
            assert names == {"lorafleet-gateway", "lorafleet-gateway-ca", "lorafleet-engine-ca"}
            assert environment["LORAFLEET_ENGINE_CA_BY"] == "CertManager"
            assert "LORAFLEET_GATEWAY_TLS" not in environment
        else:
            assert not names
            assert "LORAFLEET_ENGINE_CA_BY" not in environment
            assert "LORAFLEET_GATEWAY_TLS" in environment


def test_the_operator_is_told_what_to_make(render: Render) -> None:
    settings = ("gateway.tls.certificate.by=Operator", "gateway.tls.certificate.ipAddresses={127.0.0.1}")
    documents = render(ENABLED, *settings, "gateway.tls.certificate.dnsNames={llm.example.org}")
    wanted = json.loads(told(documents)["LORAFLEET_GATEWAY_TLS"])
    assert wanted == {
        "secret": mounted(documents),
        "dnsNames": [*NAMES, "llm.example.org"],
        "ipAddresses": ["127.0.0.1"],
    }
    assert not of_kind(documents, "Secret"), "what is rendered elsewhere would have another key each time"
    assert "LORAFLEET_GATEWAY_TLS" not in told(render("gateway.tls.secretName=mine"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (("gateway.tls.certificate.by=Magic",), "by"),
        (("engine.authority.by=Chart",), "by"),
        (("gateway.tls.certificate.issuerRef.kind=ClusterIssuer",), "name"),
        (("gateway.tls.certificate.by=Operator", "gateway.tls.certificate.issuerRef.name=ca"), "leave it out"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: tuple[str, ...], named: str) -> None:
    words = [word for setting in (ENABLED, *settings) for word in ("--set", setting)]
    done = helm("template", "lorafleet", CHART, *words)
    assert done.returncode != 0
    assert named in done.stderr
