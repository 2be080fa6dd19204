"""Helm and kubectl against a bare API server."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.binaries import locate
from e2e.cluster.paths import REPOSITORY, find_cache

CHART = REPOSITORY / "charts" / "lorafleet"
Render = Callable[..., list[dict[str, Any]]]
Kubectl = Callable[..., str]


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm; the caller looks at the return code."""
    program = locate(find_cache(), "helm")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def render() -> Render:
    """Render the chart with `--set` arguments into its objects."""

    def rendered(*settings: str) -> list[dict[str, Any]]:
        words = [word for setting in settings for word in ("--set", setting)]
        done = helm("template", "lorafleet", CHART, "--namespace", "lorafleet-system", *words)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return rendered


@pytest.fixture(scope="session")
def kubectl(apiserver: ApiServer) -> Kubectl:
    """Run kubectl against the bare API server, which has the CRDs; `accept` are statuses that are no failure."""

    def ran(*arguments: str | Path, stdin: str | None = None, accept: tuple[int, ...] = (0,)) -> str:
        command = [locate(find_cache(), "kubectl"), "--kubeconfig", apiserver.kubeconfig, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode in accept, done.stderr
        return done.stdout

    ran("apply", "--server-side", "-f", CHART / "crds")
    ran("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    return ran
