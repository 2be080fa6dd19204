"""A pool of a test's own, like the quickstart's but for what the test needs; what others did to that does not matter.

Its tenant, its one adapter and the pool have the same name.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.client import Client, refusal
from e2e.engines import POOL
from e2e.fleet import DEMO, Fleet, Object, adapter
from e2e.waiting import wait_until
from lorafleet_contracts.names import LABEL_POOL

_TYPE = {"apiVersion": "lorafleet.io/v1alpha1"}


@contextmanager
def own_pool(fleet: Fleet, gateway: str, name: str, changes: Object) -> Iterator[Client]:
    """A client of the tenant alone on the pool, Ready. `changes` stand in place of the same fields of its spec."""
    pool = fleet.get("lorapool", POOL)
    assert pool
    meta = {"name": name, "namespace": DEMO}
    tenant = {"poolRef": {"name": name}, "adapters": {"names": [name]}}
    fleet.apply(
        {**_TYPE, "kind": "LoraPool", "metadata": meta, "spec": pool["spec"] | changes},
        adapter(name, source="pirate", poolRef={"name": name}),
        {**_TYPE, "kind": "Tenant", "metadata": meta, "spec": tenant},
    )
    try:
        key = fleet.create_key(DEMO, name)
        fleet.wait_ready()
        found = Client(gateway, key)
        wait_until(lambda: refusal(found, name) == 200, seconds=30, what="the gateway knows the tenant")
        yield found
    finally:
        for kind in ("tenant", "loraadapter", "lorapool"):
            fleet.delete(kind, name)
        wait_until(
            lambda: not fleet.list("pods", selector=f"{LABEL_POOL}={name}"), seconds=180, what="its pods are gone"
        )
