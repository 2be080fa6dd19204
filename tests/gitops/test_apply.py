"""What GitOps tools do with our manifests, on a real API server: render, apply, apply again, share fields."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.paths import REPOSITORY
from lorafleet_contracts.crd import KINDS
from tests.chart.conftest import CHART, Render
from tests.gitops.test_health import assess

pytestmark = pytest.mark.apiserver
EXAMPLES = REPOSITORY / "examples"
COMPONENTS = sorted(path.name for path in (EXAMPLES / "components").iterdir())
Kubectl = Callable[..., str]

POOL = """
apiVersion: lorafleet.io/v1alpha1
kind: LoraPool
metadata: {name: shared, namespace: default}
spec:
  baseModel: {name: smol, source: {uri: "http://assets/smol"}, ALIASES}
  engine: {dtype: float32, pod: {volumes: [VOLUME], env: [{name: ENV, value: "1"}]}}
  sources: {allow: [{prefix: "http://PREFIX/"}]}
"""


def pool_of(who: str) -> str:
    volume = "{name: " + who + ", emptyDir: {}}"
    text = POOL.replace("ALIASES", f"aliases: [{who}-model]").replace("VOLUME", volume)
    return text.replace("ENV", who.upper()).replace("PREFIX", who)


def read(kubectl: Kubectl, kind: str, name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(kubectl("get", kind, name, "-n", "default", "-o", "yaml")))


def test_managers_share_lists_entry_by_entry(kubectl: Kubectl) -> None:
    for who in ("platform", "team"):
        kubectl("apply", "--server-side", "--field-manager", who, "-f", "-", stdin=pool_of(who))
    spec = read(kubectl, "lorapool", "shared")["spec"]
    pod = spec["engine"]["pod"]
    assert sorted(spec["baseModel"]["aliases"]) == ["platform-model", "team-model"]
    assert [each["name"] for each in pod["volumes"]] == ["platform", "team"]
    assert [each["name"] for each in pod["env"]] == ["PLATFORM", "TEAM"]
    assert [each["prefix"] for each in spec["sources"]["allow"]] == ["http://platform/", "http://team/"]
    without = pool_of("team").replace("volumes: [{name: team, emptyDir: {}}], ", "")
    kubectl("apply", "--server-side", "--field-manager", "team", "-f", "-", stdin=without)
    pod = read(kubectl, "lorapool", "shared")["spec"]["engine"]["pod"]
    assert [each["name"] for each in pod["volumes"]] == ["platform"]
    kubectl("delete", "lorapool", "shared", "-n", "default")


def test_the_chart_and_examples_apply_as_plain_manifests_and_a_second_time_change_nothing(
    render: Render, kubectl: Kubectl
) -> None:
    documents = render()
    hooks = [each for each in documents if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    assert not hooks, "whoever applies the output of helm template would run none of them"
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lorafleet-system"}}
    plain = yaml.safe_dump_all([namespace, *documents])
    examples = kubectl("kustomize", EXAMPLES / "production")
    for each in (plain, examples):
        kubectl("apply", "-f", "-", stdin=each, accept=(0, 1))  # namespaces come with the rest
        kubectl("apply", "-f", "-", stdin=each)
        assert kubectl("diff", "-f", "-", stdin=each) == ""
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=each)
        assert kubectl("diff", "--server-side", "--force-conflicts", "-f", "-", stdin=each) == ""
    kubectl("apply", "--server-side", "--dry-run=server", "-f", CHART / "crds")
    kubectl("delete", "-f", "-", "--wait=false", stdin=examples)


def test_what_the_operator_has_not_seen_is_in_progress(kubectl: Kubectl) -> None:
    """Without a first status, kstatus would call it current before anybody looked."""
    kubectl("apply", "-f", "-", stdin=pool_of("unseen").replace("name: shared", "name: unseen"))
    pool = read(kubectl, "lorapool", "unseen")
    assert pool["status"]["observedGeneration"] == -1
    assert "conditions" not in pool["status"]
    assert assess("LoraPool", pool)["status"] == "Progressing"
    kubectl("delete", "lorapool", "unseen", "-n", "default")


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_component_changes_what_it_says(kubectl: Kubectl, component: str) -> None:
    pools = [each for each in rendered(kubectl) if each["kind"] == "LoraPool"]
    (pool,) = pools
    seen = {
        "managed-replicas": pool["spec"]["replicas"].get("max") == 8,
        "nvidia-gpu": pool["spec"]["engine"]["pod"]["resources"]["limits"].get("nvidia.com/gpu") == "1",
        "shared-pool": pool["spec"].get("allowedNamespaces", {}).get("from") == "Selector",
        "sync-waves": "argocd.argoproj.io/sync-wave" in pool["metadata"].get("annotations", {}),
    }
    assert seen[component]


def rendered(kubectl: Kubectl) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(kubectl("kustomize", EXAMPLES / "production")))


def test_argo_cd_s_own_settings_survive_ours(kubectl: Kubectl, tmp_path: Path) -> None:
    own = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm"}, "data": {"url": "https://argo"}}
    kubectl("apply", "-n", "default", "-f", "-", stdin=yaml.safe_dump(own))
    patch = tmp_path / "health.yaml"
    patch.write_text(kubectl("kustomize", EXAMPLES / "argocd"))
    kubectl("patch", "configmap", "argocd-cm", "-n", "default", "--type", "merge", "--patch-file", patch)
    data = read(kubectl, "configmap", "argocd-cm")["data"]
    names = {f"resource.customizations.health.lorafleet.io_{kind.name}" for kind in KINDS}
    assert data.keys() == {"url", *names}
    assert all("Progressing" in data[name] for name in names)
