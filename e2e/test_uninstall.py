"""`helm uninstall` and deleting the CRDs leave nothing of LoraFleet behind."""

import yaml

from e2e.client import Client
from e2e.engines import POOL, ready_replicas
from e2e.fleet import CRDS, DEMO, NAMESPACE, QUICKSTART, Fleet
from e2e.waiting import wait_until

EVERYWHERE = "clusterroles,clusterrolebindings,crds"
INSIDE = (
    "deployments,statefulsets,services,pods,secrets,configmaps,serviceaccounts,roles,rolebindings,leases,"
    "networkpolicies,poddisruptionbudgets"
)
DEAD = "localhost/lorafleet/engine:none"  # no node has it, no registry gives it


def left(fleet: Fleet) -> list[str]:
    """Names of everything in the cluster that is LoraFleet's."""
    words = ["get", EVERYWHERE, "-o", "name"]
    names = [name for name in fleet.kubectl.run(*words).split() if "lorafleet" in name]
    for namespace in (NAMESPACE, DEMO):
        found = fleet.kubectl.run("get", INSIDE, "-n", namespace, "-o", "name", "--ignore-not-found").split()
        names += [f"{namespace}/{name}" for name in found]
    harmless = ("kube-root-ca.crt", "serviceaccount/default", "demo-assets")
    return [name for name in names if not any(word in name for word in harmless)]


def apply_with_dead_engines(fleet: Fleet) -> None:
    """The quickstart with engines of which none ever lives."""
    documents = list(yaml.safe_load_all(fleet.kubectl.run("kustomize", str(QUICKSTART))))
    for each in documents:
        if each["kind"] == "LoraPool":
            each["spec"]["engine"].setdefault("pod", {})["image"] = DEAD
    fleet.apply(*documents)


def stuck_engines(fleet: Fleet) -> int:
    """How many engines cannot have their image."""
    waiting = [
        pod["status"].get("containerStatuses", [{}])[0].get("state", {}).get("waiting", {}).get("reason", "")
        for pod in fleet.list("pods", selector=f"lorafleet.io/pool={POOL}")
    ]
    return sum(reason in ("ErrImagePull", "ImagePullBackOff") for reason in waiting)


def remove_all(fleet: Fleet) -> None:
    """Uninstall and delete the CRDs, as NOTES.txt says. A finalizer that nobody lifts would make this end badly."""
    fleet.uninstall()
    fleet.kubectl.run("delete", "crd", *CRDS, "--timeout=60s")


def test_nothing_is_left(fleet: Fleet, acme: Client) -> None:
    assert left(fleet), "this test would not see anything"
    remove_all(fleet)
    wait_until(lambda: not fleet.list("pods", selector="lorafleet.io/pool"), seconds=120, what="engines are gone")
    wait_until(lambda: not left(fleet), seconds=60, what="nothing left", pause=1)


def test_nothing_is_left_with_every_engine_dead(fleet: Fleet) -> None:
    fleet.install()
    apply_with_dead_engines(fleet)
    wait_until(lambda: stuck_engines(fleet) == 2, seconds=60, what="both engines dead")
    assert not ready_replicas(fleet)
    remove_all(fleet)
    wait_until(lambda: not left(fleet), seconds=60, what="nothing left", pause=1)
