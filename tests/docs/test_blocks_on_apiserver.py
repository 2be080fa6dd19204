"""Shell blocks of the docs that need an API server and nothing that runs on a cluster; and manifests of the docs."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.apiserver import ApiServer
from lorafleet_contracts.crd import KINDS
from lorafleet_contracts.names import GROUP
from tests.chart.conftest import kubectl
from tests.support.shell_blocks import (
    Block,
    Check,
    Shell,
    make_shell,
    manifests,
    pages_of,
    read_blocks,
    run_page,
)

__all__ = ["kubectl"]
pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(600)]  # a dozen programs start one after the other
Kubectl = Callable[..., str]
SYSTEM, SERVING = "lorafleet-system", "serving"
PORT_KEYS = "lorafleet-port-keys"


def listing(*objects: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def plain(kind: str, name: str, namespace: str = "", **parts: Any) -> dict[str, Any]:
    """A core object."""
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **where}, **parts}


def read_json(kubectl: Kubectl, *words: str) -> Any:
    return json.loads(kubectl("get", *words, "-o", "json"))


@contextmanager
def install(shell: Shell, kubectl: Kubectl) -> Iterator[Check]:
    """A node with two GPUs and a taint."""
    node = plain("Node", "gpu-1", spec={"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]})
    node["metadata"]["labels"] = {"topology.kubernetes.io/zone": "zone-a"}
    kubectl("apply", "-f", "-", stdin=listing(node))
    status = json.dumps({"status": {"allocatable": {"nvidia.com/gpu": "2"}}})
    kubectl("patch", "node", "gpu-1", "--subresource=status", "--type=merge", "-p", status)

    def check(block: Block, said: str) -> None:
        _, row = said.splitlines()
        assert row.split()[:3] == ["gpu-1", "2", "zone-a"]
        assert "nvidia.com/gpu" in row

    yield check
    kubectl("delete", "node", "gpu-1")


@contextmanager
def gitops(shell: Shell, kubectl: Kubectl) -> Iterator[Check]:
    """Argo CD's own settings."""
    own = plain("ConfigMap", "argocd-cm", "argocd", data={"url": "https://argo"})
    kubectl("apply", "-f", "-", stdin=listing(plain("Namespace", "argocd"), own))

    def check(block: Block, said: str) -> None:
        data = read_json(kubectl, "configmap", "argocd-cm", "-n", "argocd")["data"]
        names = {f"resource.customizations.health.{GROUP}_{kind.name}" for kind in KINDS}
        assert data.keys() == {"url", *names}

    yield check


@contextmanager
def operations(shell: Shell, kubectl: Kubectl) -> Iterator[Check]:
    """The fleet of docs/install.md, a key in its tenant, and the Secrets that the operator made."""
    keys = {name: f"old {name}" for name in ("serving", "state", "admin")}
    kubectl("apply", "-f", "-", stdin=listing(
        plain("Namespace", SYSTEM),
        plain("Secret", PORT_KEYS, SYSTEM, stringData=keys),
        *manifests("docs/install.md"),
    ))  # fmt: skip
    key = {"id": "k1", "sha256": "0" * 64}
    kubectl("patch", "tenant", "acme", "-n", SERVING, "--type=merge", "-p", json.dumps({"spec": {"apiKeys": [key]}}))
    kinds = ",".join(f"{kind.plural}.{GROUP}" for kind in KINDS)
    before = specs(read_json(kubectl, kinds, "-n", SERVING))

    def check(block: Block, said: str) -> None:
        if "> fleet.json" in block.text:
            keep_own(shell.folder / "fleet.json")
            kubectl("delete", kinds, "--all", "-n", SERVING)
        elif "create -f fleet.json" in block.text:
            assert specs(read_json(kubectl, kinds, "-n", SERVING)) == before
        elif "ports rotate" in block.text:  # with no engine there is nobody to wait for
            data = read_json(kubectl, "secret", PORT_KEYS, "-n", SYSTEM)["data"]
            assert data.keys() == keys.keys()
            assert all(len(base64.b64decode(each)) == 64 for each in data.values())
        else:
            assert "lorafleet why" in block.text
            assert "serving/support" in said

    try:
        yield check
    finally:
        kubectl("delete", kinds, "--all", "-n", SERVING)
        kubectl("delete", "secret", PORT_KEYS, "-n", SYSTEM)


def keep_own(backup: Path) -> None:
    """Take out of a backup what other tests have on the same API server: it is not gone when this one restores."""
    told = json.loads(backup.read_text())
    told["items"] = [each for each in told["items"] if each["metadata"]["namespace"] == SERVING]
    backup.write_text(json.dumps(told))


def specs(listed: Any) -> dict[tuple[str, str], Any]:
    return {(each["kind"], each["metadata"]["name"]): each["spec"] for each in listed["items"]}


STAGES = {"docs/gitops.md": gitops, "docs/install.md": install, "docs/operations.md": operations}


@pytest.mark.parametrize("page", pages_of("apiserver"))
def test_every_block_does_what_its_page_says(page: str, apiserver: ApiServer, kubectl: Kubectl, tmp_path: Path) -> None:
    run_page(page, "apiserver", make_shell(tmp_path, apiserver.kubeconfig), partial(STAGES[page], kubectl=kubectl))


@pytest.mark.parametrize("page", sorted({block.page for block in read_blocks() if block.language == "yaml"}))
def test_an_api_server_takes_every_manifest(page: str, kubectl: Kubectl) -> None:
    found = json.loads(json.dumps(manifests(page)).replace('"sha256:..."', f'"sha256:{"0" * 64}"'))
    if found:
        spaces = {each["metadata"].get("namespace", "default") for each in found} - {"default"}
        kubectl("apply", "-f", "-", stdin=listing(*(plain("Namespace", name) for name in spaces)))
        kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=listing(*found))
