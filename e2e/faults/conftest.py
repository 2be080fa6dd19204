"""The stage that the faults are made on; put back at the end as other tests expect it."""

from collections.abc import Iterator

import pytest

from e2e.cluster.paths import find_cache
from e2e.faults.host import Control
from e2e.faults.stage import ADAPTERS, Stage, accounts
from e2e.faults.store import FaultyStore
from e2e.fleet import NAMESPACE, Fleet, adapter
from e2e.quickstart import apply_quickstart, create_keys
from e2e.waiting import wait_until

STORE = "limits-store"
DEMO_ASSETS = {"prefix": "http://demo-assets/"}


@pytest.fixture(scope="package")
def stage(fleet: Fleet) -> Iterator[Stage]:
    """Two gateways, two replicas, and all three adapters on both."""
    if fleet.kubectl.kubeconfig is None:
        pytest.skip("faults are made on the local cluster only; KUBECONFIG names another")
    # No tenant here has limits, so nothing needs to answer there.
    store = {"kind": "Secret", "metadata": {"name": STORE, "namespace": NAMESPACE}}
    fleet.make_namespace()
    fleet.apply({"apiVersion": "v1", **store, "stringData": {"url": f"valkey://{STORE}:6379"}})
    fleet.install("gateway.replicas=2", f"gateway.limits.store.secretName={STORE}")
    apply_quickstart(fleet)
    keys = create_keys(fleet)
    fleet.wait_ready()
    for name in ADAPTERS:
        fleet.patch("loraadapter", name, {"minReplicas": 2})
    service = fleet.get("service", "lorafleet-gateway", NAMESPACE)
    assert service
    address = f"http://{service['spec']['clusterIP']}:8080"
    made = Stage(fleet, accounts(address, [(keys.acme, "pirate"), (keys.acme, "shout"), (keys.globex, "support")]))
    wait_until(made.whole, seconds=120, what="the stage is set", pause=0.5)
    yield made
    for name in ADAPTERS:
        fleet.patch("loraadapter", name, {"minReplicas": None})
    fleet.install()
    fleet.delete("secret", STORE, NAMESPACE)


@pytest.fixture
def robot(fleet: Fleet) -> Iterator[str]:
    """An adapter that a test applies in the midst of a fault, gone afterwards."""
    yield "robot"
    fleet.delete("loraadapter", "robot")


@pytest.fixture
def control(stage: Stage) -> Control:
    """The local cluster's own programs."""
    return Control(find_cache())


@pytest.fixture
def store(stage: Stage) -> Iterator[FaultyStore]:
    """An artifact store on this machine that the pool admits; its faults are the test's to choose."""
    with FaultyStore.opened() as opened:
        stage.fleet.patch("lorapool", "smol", {"sources": {"allow": [DEMO_ASSETS, {"prefix": opened.address}]}})
        yield opened
        for each in stage.fleet.list("loraadapters"):
            if each["metadata"]["name"] not in ADAPTERS:
                stage.fleet.delete("loraadapter", each["metadata"]["name"])
        stage.fleet.patch("lorapool", "smol", {"sources": {"allow": [DEMO_ASSETS]}})


def stored(store: FaultyStore, name: str, source: str, **spec: object) -> dict[str, object]:
    """An adapter whose files lie in the faulty store."""
    made = adapter(name, **spec)
    made["spec"]["source"] = {"uri": f"{store.address}{source}"}
    return made
