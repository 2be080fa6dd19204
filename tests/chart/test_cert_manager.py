"""cert-manager itself, as a process beside a bare API server: what the chart asks of it becomes Secrets that work."""

import base64
import json
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.binaries import build_missing, locate
from e2e.cluster.paths import find_cache
from e2e.waiting import wait_until
from lorafleet_contracts.names import ENGINE_CA, engine_server_name
from lorafleet_gateway.shell.engine_roots import EngineRoots
from lorafleet_operator.core.authority import term_of
from lorafleet_operator.core.snapshot import Certificate
from lorafleet_operator.shell.certificates import Holder, issue, read_authority
from lorafleet_operator.shell.trust import TlsOptions
from tests.chart.conftest import Kubectl, Render
from tests.chart.test_certificate import ENABLED, NAMES, apply_definitions
from tests.support.handshake import shake_hands

pytestmark = [pytest.mark.apiserver, pytest.mark.long]
NAMESPACE = "lorafleet-system"
GATEWAY = "lorafleet-gateway-tls"
Secret = dict[str, bytes]


@pytest.fixture(scope="module")
def controller(kubectl: Kubectl, apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """cert-manager's controller over its own definitions."""
    cache = find_cache()
    build_missing(cache, ["cert-manager"])
    folder = tmp_path_factory.mktemp("cert-manager")
    apply_definitions(kubectl, folder, "certificates", "issuers", "certificaterequests", "clusterissuers")
    kubectl("apply", "-f", "-", stdin=f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}")
    wanted = "issuers,certificaterequests-issuer-ca,certificaterequests-issuer-selfsigned,certificaterequests-approver"
    steps = ("issuing", "key-manager", "metrics", "readiness", "request-manager", "revision-manager", "trigger")
    command = [
        locate(cache, "cert-manager"),
        f"--kubeconfig={apiserver.kubeconfig}",
        f"--namespace={NAMESPACE}",
        "--leader-elect=false",
        "--metrics-listen-address=127.0.0.1:0",
        f"--controllers={wanted},{','.join(f'certificates-{step}' for step in steps)}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()
    if process.returncode not in (0, -15):
        raise AssertionError((folder / "log").read_text()[-2000:])


@pytest.fixture(scope="module")
def asked(controller: None, kubectl: Kubectl, render: Render) -> None:
    """What the chart asks for."""
    settings = ("gateway.tls.certificate.by=CertManager", "engine.authority.by=CertManager")
    documents = [each for each in render(ENABLED, *settings) if each["apiVersion"] == "cert-manager.io/v1"]
    kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=yaml.safe_dump_all(documents))


def await_secret(kubectl: Kubectl, name: str, fits: Callable[[Secret], bool] = bool) -> Secret:
    """The files of a Secret of type TLS, once it is there and fits."""
    found: Secret = {}

    def there() -> bool:
        text = kubectl("get", "secret", name, "-n", NAMESPACE, "-o", "json", "--ignore-not-found")
        secret: dict[str, Any] = json.loads(text) if text.strip() else {"data": {}}
        found.clear()
        found.update({file: base64.b64decode(content) for file, content in secret["data"].items()})
        return {"tls.crt", "tls.key", "ca.crt"} <= found.keys() and fits(found)

    wait_until(there, seconds=120, what=f"cert-manager writes Secret {name}")
    return found


def test_its_authority_signs_for_engines(asked: None, kubectl: Kubectl, tmp_path: Path) -> None:
    files = await_secret(kubectl, ENGINE_CA)
    authority = read_authority(files["tls.crt"], files["tls.key"])
    name = engine_server_name("demo", "smol")
    holder = Holder("pool/uid", [name])
    issued = issue(authority, holder, term_of(authority.root, holder.identity, time.time()))
    roots = EngineRoots(lambda _: None)
    roots.use(authority.root.pem)
    shake_hands(issued, TlsOptions(ssl=roots.context(), server_hostname=name), tmp_path)

    kubectl("delete", "secret", ENGINE_CA, "-n", NAMESPACE)
    again = await_secret(kubectl, ENGINE_CA, lambda found: found["tls.crt"] != files["tls.crt"])
    assert read_authority(again["tls.crt"], again["tls.key"]).root.fingerprint != authority.root.fingerprint


def test_its_certificate_serves_the_gateway(asked: None, kubectl: Kubectl, tmp_path: Path) -> None:
    files = await_secret(kubectl, GATEWAY)
    gateway = Certificate("", files["tls.crt"].decode(), files["tls.key"].decode())
    trust = ssl.create_default_context(cadata=files["ca.crt"].decode())
    for name in NAMES:
        shake_hands(gateway, TlsOptions(ssl=trust, server_hostname=name), tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(gateway, TlsOptions(ssl=trust, server_hostname="elsewhere"), tmp_path)
