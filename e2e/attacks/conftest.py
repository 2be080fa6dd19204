"""The siege of the quickstart: hostile namespaces beside it, a hostile store, slow clients; all gone afterwards."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import pytest

from e2e.attacks import store
from e2e.attacks.api import OWN
from e2e.attacks.objects import LIMITS, MOST, OUTSIDER, RULES, TENANCY, TRIALS, lora
from e2e.attacks.siege import GREEDY, MALLORY, STRANGER, Siege
from e2e.attacks.slow import SlowClients
from e2e.client import Client
from e2e.cluster.paths import REPOSITORY
from e2e.engines import POOL
from e2e.fleet import DEMO, NAMESPACE, RESTRICTED, Fleet, Object, holds
from e2e.probes import make_pod, namespace_of_probes
from e2e.quickstart import Keys
from e2e.traffic import asking
from e2e.waiting import wait_until
from lorafleet_contracts.keys import SECRET_BYTES, KeyName, format_key, key_digest

PAUSE = 2.0
"""Seconds between two requests of the neighbour who must notice nothing."""
PROGRAM = ("e2e/attacks/store.py", "tests/engine/support/hostile.py")
HOSTILE = (MALLORY, GREEDY, STRANGER)
VICTIMS = ("acme", "globex")
MORE: Mapping[str, Object] = {
    "weight": {"weight": 1000},
    "isolation": {"isolation": "Dedicated"},
    "requests": {"limits": {**LIMITS, "requestsPerSecond": MOST + 1}},
    "concurrency": {"limits": {**LIMITS, "concurrentRequests": MOST + 1}},
    "in-sum": {"limits": {**LIMITS, "requestsPerSecond": 2}},
    "no-limits": {},
}
"""By tenant, what each asks for beyond `tenancy`."""
TYPE = {"apiVersion": "lorafleet.io/v1alpha1", "kind": "Tenant"}


@pytest.fixture(scope="module")
def siege(fleet: Fleet, keys: Keys) -> Iterator[Siege]:
    """Everything is on its way: what takes long is looked at last."""
    service = fleet.get("service", "lorafleet-gateway", NAMESPACE)
    assert service
    place = (service["spec"]["clusterIP"], 8080)
    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with ExitStack() as exits:
        slow = exits.enter_context(SlowClients.opened(place, keys.acme))
        exits.enter_context(_opened_pool(fleet))
        tenant, mallory, expired = _mallory()
        half, _ = _outsider("half", GREEDY, limits={**LIMITS, "requestsPerSecond": MOST - 1})  # the rest is too little
        greedy = {name: _outsider(name, GREEDY, **more) for name, more in MORE.items()}
        outsider, stranger = _outsider(OUTSIDER, STRANGER, adapters={"names": [OUTSIDER, "demo/pirate"], "base": True})
        own = lora(OWN, "http://demo-assets/adapters/shout", sharedWith={"namespaceSelector": {}})
        fleet.apply(*_store(), tenant, outsider, own, half, *(each for each, _ in greedy.values()))
        pods = exits.enter_context(namespace_of_probes(fleet, MALLORY))  # waits for the store too
        fleet.apply(*(each.manifest for each in TRIALS))
        neighbour = exits.enter_context(asking(Client(f"http://{place[0]}:{place[1]}", keys.acme)))
        neighbour.pause = PAUSE
        ready = ("loraadapter", OWN, MALLORY)
        wait_until(lambda: holds(fleet.get(*ready), "Ready"), seconds=90, what="Mallory's adapter is Ready")
        used = {keys.acme, keys.globex, mallory, expired, stranger, *(key for _, key in greedy.values())}
        secret = {name: key for name, (_, key) in greedy.items()}
        yield Siege(fleet, place, keys, mallory, expired, secret, stranger, pods, slow, neighbour, began, used)


@contextmanager
def _opened_pool(fleet: Fleet) -> Iterator[None]:
    """The demo's pool admits two of the hostile namespaces while the block runs, and leaves nobody without limits."""
    pool = fleet.get("lorapool", POOL)
    assert pool
    kept = pool["spec"]["sources"]
    hostile = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [MALLORY, GREEDY]}
    changes: Object = {
        "allowedNamespaces": {"from": "Selector", "selector": {"matchExpressions": [hostile]}},
        "tenancy": TENANCY,
        "sources": {"allow": [*kept["allow"], *RULES]},
    }
    for namespace in HOSTILE:
        fleet.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": RESTRICTED}})
    for tenant in VICTIMS:
        fleet.patch("tenant", tenant, {"limits": dict.fromkeys(LIMITS, MOST // len(VICTIMS))})
    fleet.patch("lorapool", POOL, changes)
    try:
        yield
    finally:
        for namespace in HOSTILE:
            fleet.kubectl.run("delete", "loraadapters,tenants", "--all", "-n", namespace, "--wait=false")
        fleet.patch("lorapool", POOL, {"allowedNamespaces": None, "tenancy": None, "sources": kept})
        for tenant in VICTIMS:
            fleet.patch("tenant", tenant, {"limits": None})
        fleet.kubectl.run("delete", "namespace", *HOSTILE, "--wait=false", "--ignore-not-found")


def _store() -> list[Object]:
    """The hostile store: its program, a pod that runs it, and its Service."""
    files = {path.replace("/", "."): (REPOSITORY / path).read_text() for path in PROGRAM}
    items = [{"key": path.replace("/", "."), "path": path} for path in PROGRAM]
    meta = {"name": "store", "namespace": MALLORY}
    good = f"http://demo-assets.{DEMO}.svc/adapters/robot"
    pod = make_pod("store", MALLORY, ["python3", "-m", "e2e.attacks.store", good])
    container = pod["spec"]["containers"][0]
    container |= {"workingDir": "/program", "volumeMounts": [{"name": "program", "mountPath": "/program"}]}
    container["readinessProbe"] = {"httpGet": {"path": "/seen", "port": store.PORT}, "periodSeconds": 1}
    pod["spec"]["volumes"] = [{"name": "program", "configMap": {"name": "store", "items": items}}]
    pod["metadata"]["labels"] = {"app": "store"}
    service = {"selector": {"app": "store"}, "ports": [{"port": 80, "targetPort": store.PORT}]}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files},
        pod,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": service,
        },
    ]


def _mallory() -> tuple[Object, str, str]:
    """A tenant by the victim's name who lists the victim's adapters, its key, and one that has expired."""
    names = [OWN, "demo/pirate", "demo/shout", "demo/support", f"{STRANGER}/{OUTSIDER}"]
    keys = {id: _make_key(KeyName(MALLORY, "acme", id)) for id in ("now", "old")}
    entries = [
        {"id": "now", "sha256": key_digest(keys["now"])},
        {"id": "old", "sha256": key_digest(keys["old"]), "expiresAt": "2020-01-01T00:00:00Z"},
    ]
    spec = {"adapters": {"names": names}, "apiKeys": entries, "limits": LIMITS}
    return _tenant("acme", MALLORY, spec), keys["now"], keys["old"]


def _outsider(name: str, namespace: str, **more: object) -> tuple[Object, str]:
    """A tenant with such a spec, and its key."""
    key = _make_key(KeyName(namespace, name, "k1"))
    spec = {"adapters": {"base": True}, "apiKeys": [{"id": "k1", "sha256": key_digest(key)}], **more}
    return _tenant(name, namespace, spec), key


def _tenant(name: str, namespace: str, spec: Object) -> Object:
    pool = {"poolRef": {"name": POOL, "namespace": DEMO}}
    return {**TYPE, "metadata": {"name": name, "namespace": namespace}, "spec": pool | spec}


def _make_key(name: KeyName) -> str:
    return format_key(name, secrets.token_bytes(SECRET_BYTES))
