"""What is shown of a pool: its aims in seconds, and how many of its objects stand how."""

from dataclasses import replace

from lorafleet_operator.core.figures import UNSEEN, count_pool
from tests.support.fleet import make_adapter, make_pool, make_snapshot, make_tenant
from tests.support.plans import ready_snapshot


def test_a_settled_pool() -> None:
    figures = count_pool(ready_snapshot())
    assert figures.pool == "demo/smol"
    assert figures.objects["LoraAdapter", "Ready"] == 1
    assert (figures.wanted, figures.ready) == (1, 1)
    assert figures.objectives == {"itl": 0.03, "ttft": 0.5, "coldLoad": 0.5}


def test_what_nobody_has_looked_at_is_counted_as_unseen() -> None:
    snapshot = make_snapshot(adapters=(make_adapter("a"), make_adapter("b")), tenants=(make_tenant("acme"),))
    objects = count_pool(snapshot).objects
    assert (objects["LoraAdapter", UNSEEN], objects["Tenant", UNSEEN]) == (2, 1)


def test_a_pool_that_cannot_be_read_has_no_aims() -> None:
    pool = make_pool()
    assert count_pool(make_snapshot(pool=replace(pool, spec=None))).objectives == {}
