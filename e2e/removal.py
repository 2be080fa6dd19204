"""What LoraFleet leaves on a cluster; used by the tests that uninstall it."""

from e2e.fleet import CRDS, DEMO, NAMESPACE, Fleet
from e2e.waiting import NotInTimeError, wait_until

_EVERYWHERE = "clusterroles,clusterrolebindings,crds"
_INSIDE = (
    "deployments,statefulsets,services,pods,secrets,configmaps,serviceaccounts,roles,rolebindings,leases,"
    "networkpolicies,poddisruptionbudgets"
)
_HARMLESS = ("kube-root-ca.crt", "serviceaccount/default", "demo-assets")


def left(fleet: Fleet, *namespaces: str) -> list[str]:
    """Names of everything in the cluster that is LoraFleet's; the quickstart's server of files is not."""
    words = ["get", _EVERYWHERE, "-o", "name"]
    names = [name for name in fleet.kubectl.run(*words).split() if "lorafleet" in name]
    for namespace in (NAMESPACE, DEMO, *namespaces):
        found = fleet.kubectl.run("get", _INSIDE, "-n", namespace, "-o", "name", "--ignore-not-found").split()
        names += [f"{namespace}/{name}" for name in found]
    return [name for name in names if not any(word in name for word in _HARMLESS)]


def wait_until_nothing_is_left(fleet: Fleet, *namespaces: str) -> None:
    """Once the CRDs are deleted. An engine that answers something ends first."""
    try:
        wait_until(lambda: not left(fleet, *namespaces), seconds=180, what="nothing left", pause=1)
    except NotInTimeError:
        assert not left(fleet, *namespaces)  # says what there is


def remove_all(fleet: Fleet) -> None:
    """Uninstall and delete the CRDs, as NOTES.txt says. A finalizer that nobody lifts would make this end badly."""
    fleet.uninstall()
    fleet.kubectl.run("delete", "crd", *CRDS, "--timeout=60s", "--ignore-not-found")
