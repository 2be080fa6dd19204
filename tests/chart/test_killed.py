"""An install that is killed midway, as by a Ctrl-C too many, is no end: what the demo does first lets Helm go on."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.binaries import locate
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.paths import find_cache
from e2e.fleet import NAMESPACE, RELEASE, Fleet

pytestmark = pytest.mark.apiserver
CHART = "apiVersion: v2\nname: small\nversion: 1.0.0\n"
NEVER_READY = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: small-and-never-ready}
spec:
  selector: {matchLabels: {app: small}}
  template:
    metadata: {labels: {app: small}}
    spec: {containers: [{name: main, image: "registry.test/main:1"}]}
"""


def test_what_was_killed_is_forgotten_and_helm_goes_on(
    kubectl: Callable[..., str], apiserver: ApiServer, tmp_path: Path
) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text(CHART)
    (tmp_path / "templates" / "deployment.yaml").write_text(NEVER_READY)
    fleet = Fleet(Kubectl(locate(find_cache(), "kubectl"), apiserver.kubeconfig), locate(find_cache(), "helm"))
    fleet.make_namespace()
    words = [str(fleet.helm), "--kubeconfig", str(apiserver.kubeconfig), "-n", NAMESPACE]
    upgrade = [*words, "upgrade", "--install", RELEASE, str(tmp_path)]

    def pending() -> str:
        return kubectl(
            "get", "secrets", "-n", NAMESPACE, "-l", "status in (pending-install,pending-upgrade)", "-o=name"
        )

    for _ in ("install", "upgrade"):
        with subprocess.Popen([*upgrade, "--wait"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as helm:
            deadline = time.monotonic() + 60
            while not pending() and time.monotonic() < deadline:
                time.sleep(0.1)
            helm.kill()
        refused = subprocess.run(upgrade, capture_output=True, text=True, check=False)
        assert "another operation" in refused.stderr
        fleet.forget_killed()
        assert not pending()
        done = subprocess.run(upgrade, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    subprocess.run([*words, "uninstall", RELEASE], check=True, capture_output=True)
