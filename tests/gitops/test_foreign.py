"""The examples as Flux, Argo CD and GitHub read them: a real API server with those kinds, and a workflow's linter."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.cluster.binaries import locate
from e2e.cluster.paths import REPOSITORY, find_cache
from tests.gitops.foreign import foreign_crds

pytestmark = pytest.mark.apiserver
EXAMPLES = REPOSITORY / "examples"
FILES = ("flux/lorafleet.yaml", "flux/fleet.yaml", "argocd/applications.yaml")
TRY = ("apply", "--server-side", "--dry-run=server", "-f")
Kubectl = Callable[..., str]


@pytest.fixture(scope="module")
def foreign(kubectl: Kubectl) -> Iterator[Kubectl]:
    """kubectl, with the kinds of Flux and Argo CD."""
    files = [word for path in foreign_crds(find_cache()) for word in ("-f", path)]
    for namespace in ("flux-system", "argocd"):
        kubectl("apply", "-f", "-", stdin=f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n")
    kubectl("apply", "--server-side", *files)
    kubectl("wait", "--for=condition=Established", *files, "--timeout=30s")
    yield kubectl
    kubectl("delete", *files)


@pytest.mark.parametrize("file", FILES)
def test_its_own_kinds_take_the_example(foreign: Kubectl, file: str) -> None:
    assert "serverside-applied" in foreign(*TRY, EXAMPLES / file)


@pytest.mark.parametrize(
    ("file", "right", "wrong", "why"),
    [
        ("flux/lorafleet.yaml", "upgrade: {crds: CreateReplace}", "upgrade: {crds: CreateOrReplace}", "supported"),
        ("flux/lorafleet.yaml", "targetNamespace:", "targetNamespaces:", "targetNamespaces"),
        ("flux/fleet.yaml", "healthCheckExprs:", "healthChecksExprs:", "healthChecksExprs"),
        ("flux/fleet.yaml", "sourceRef: {kind: GitRepository", "sourceRef: {kind: GitRepo", "supported"),
        ("argocd/applications.yaml", "selfHeal:", "selfHeals:", "selfHeals"),
    ],
)
def test_a_slip_would_be_found(foreign: Kubectl, file: str, right: str, wrong: str, why: str) -> None:
    text = (EXAMPLES / file).read_text()
    assert right in text
    with pytest.raises(AssertionError, match=why):
        foreign(*TRY, "-", stdin=text.replace(right, wrong))


def lint(workflow: Path) -> subprocess.CompletedProcess[str]:
    """By GitHub's rules alone: what else a machine has, such as shellcheck, is left out."""
    command = [str(locate(find_cache(), "actionlint")), "-no-color", "-shellcheck=", "-pyflakes=", str(workflow)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_workflow_is_one_and_a_slip_would_be_found(tmp_path: Path) -> None:
    done = lint(EXAMPLES / "ci" / "plan.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    broken = tmp_path / "plan.yaml"
    broken.write_text((EXAMPLES / "ci" / "plan.yaml").read_text().replace("runs-on:", "run-on:"))
    assert '"runs-on" section is missing' in lint(broken).stdout
