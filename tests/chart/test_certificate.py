"""The gateway's certificate: cert-manager's CRDs accept what the chart asks for; without it the chart makes its own."""

import base64
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.commands import run
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


@pytest.fixture(scope="module")
def cert_manager(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> None:
    """cert-manager's own definitions, out of its module."""
    told = run(["go", "mod", "download", "-json", CERT_MANAGER], cwd=tmp_path_factory.mktemp("module"))
    folder = Path(json.loads(told)["Dir"]) / "deploy" / "crds"
    for kind in ("certificates", "issuers"):
        kubectl("apply", "--server-side", "-f", folder / f"cert-manager.io_{kind}.yaml")
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


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


def test_auto_is_cert_manager_where_the_cluster_has_it() -> None:
    words = ("template", "lorafleet", CHART, "--namespace", "lorafleet-system", "--set", ENABLED)
    with_it = helm(*words, "--api-versions", API).stdout
    without = helm(*words).stdout
    assert ("kind: Certificate" in with_it, "kind: Secret" in with_it) == (True, False)
    assert ("kind: Certificate" in without, "kind: Secret" in without) == (False, True)


def test_the_charts_own_is_signed_for_the_gateway_and_kept(
    render: Render, kubectl: Kubectl, apiserver: ApiServer, tmp_path: Path
) -> None:
    own = (ENABLED, "gateway.tls.certificate.by=Chart", "gateway.tls.certificate.ipAddresses={127.0.0.1}")
    documents = render(*own)
    (secret,) = of_kind(documents, "Secret").values()
    assert secret["metadata"]["name"] == mounted(documents)
    files = {name: base64.b64decode(text) for name, text in secret["data"].items()}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    for name in (*NAMES, "127.0.0.1"):
        shake_hands(server, ssl.create_default_context(cafile=str(tmp_path / "ca.crt")), name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, ssl.create_default_context(cafile=str(tmp_path / "ca.crt")), "elsewhere")

    kubectl("apply", "-f", "-", stdin="{apiVersion: v1, kind: Namespace, metadata: {name: lorafleet-system}}")
    secret["metadata"]["annotations"] = {  # as Helm does when it installs
        "meta.helm.sh/release-name": "lorafleet",
        "meta.helm.sh/release-namespace": "lorafleet-system",
    }
    kubectl("apply", "-n", "lorafleet-system", "-f", "-", stdin=json.dumps(secret))
    words = [word for setting in own for word in ("--set", setting)]
    again = helm(
        "template", "lorafleet", CHART, "-n", "lorafleet-system", "--dry-run=server",
        "--kubeconfig", apiserver.kubeconfig, "-s", "templates/gateway-certificate.yaml", *words,
    )  # fmt: skip
    kubectl("delete", "secret", secret["metadata"]["name"], "-n", "lorafleet-system")
    assert again.returncode == 0, again.stderr
    assert yaml.safe_load(again.stdout)["data"] == secret["data"]


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A TLS handshake in memory. Raises SSLCertVerificationError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("gateway.tls.certificate.by=Magic",), "by"),
        (("gateway.tls.certificate.issuerRef.kind=ClusterIssuer",), "name"),
        (("gateway.tls.certificate.by=Chart", "gateway.tls.certificate.issuerRef.name=ca"), "leave it out"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: tuple[str, ...], told: str) -> None:
    words = [word for setting in (ENABLED, *settings) for word in ("--set", setting)]
    done = helm("template", "lorafleet", CHART, *words)
    assert done.returncode != 0
    assert told in done.stderr
