"""`helm uninstall` and deleting the CRDs leave nothing of LoraFleet behind."""

from e2e.client import Client
from e2e.fleet import CRDS, DEMO, NAMESPACE, Fleet
from e2e.waiting import wait_until

EVERYWHERE = "clusterroles,clusterrolebindings,crds"
INSIDE = "deployments,statefulsets,services,pods,secrets,configmaps,serviceaccounts,roles,rolebindings,leases"


def left(fleet: Fleet) -> list[str]:
    """Names of everything in the cluster that is LoraFleet's."""
    words = ["get", EVERYWHERE, "-o", "name"]
    names = [name for name in fleet.kubectl.run(*words).split() if "lorafleet" in name]
    for namespace in (NAMESPACE, DEMO):
        found = fleet.kubectl.run("get", INSIDE, "-n", namespace, "-o", "name", "--ignore-not-found").split()
        names += [f"{namespace}/{name}" for name in found]
    harmless = ("kube-root-ca.crt", "serviceaccount/default", "demo-assets")
    return [name for name in names if not any(word in name for word in harmless)]


def test_nothing_is_left(fleet: Fleet, acme: Client) -> None:
    assert left(fleet), "this test would not see anything"
    fleet.uninstall()
    fleet.kubectl.run("delete", "crd", *CRDS, "--timeout=60s")
    wait_until(lambda: not fleet.list("pods", selector="lorafleet.io/pool"), seconds=120, what="engines are gone")
    wait_until(lambda: not left(fleet), seconds=60, what="nothing left", pause=1)
