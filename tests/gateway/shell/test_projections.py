"""Kubernetes objects to records: what says in which set of replicas a request is asked for."""

from typing import Any

import pytest

from lorafleet_gateway.core.limits import Budget, Limits
from lorafleet_gateway.shell.projections import read_adapter, read_pool, read_tenant

META = {"namespace": "acme", "name": "x", "uid": "u", "creationTimestamp": "2026-11-30T00:00:00Z"}


def made(**status: Any) -> dict[str, Any]:
    spec = {"poolRef": {"name": "smol"}, "source": {"uri": "http://assets/x"}}
    return {"metadata": META, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("stage", "own"),
    [
        ("Shared", None),
        ("Warming", None),
        ("Checking", None),
        ("CuttingOver", "merged-11111111"),
        ("Dedicated", "merged-11111111"),
        ("Draining", None),
    ],
)
def test_a_tenants_own_set_counts_from_cut_over_to_cut_back(stage: str, own: str | None) -> None:
    found = read_tenant(made(promotion={"stage": stage, "set": "merged-11111111"}))
    assert (found.set, found.own) == (own, "merged-11111111")


@pytest.mark.parametrize(
    ("wanted", "in_force", "isolated"),
    [
        (None, None, False),
        ("Dedicated", None, True),
        ("Dedicated", "Shared", False),
        ("Dedicated", "Dedicated", True),
        ("Shared", "Dedicated", True),
        ("Shared", "Shared", False),
    ],
)
def test_isolation_is_what_the_status_says_and_the_spec_before_that(
    wanted: str | None, in_force: str | None, isolated: bool
) -> None:
    found = made(**({"isolation": in_force} if in_force else {}))
    found["spec"] |= {"isolation": wanted} if wanted else {}
    assert read_tenant(found).isolated is isolated


def test_limits_and_caps_are_read_and_fields_of_newer_versions_ignored() -> None:
    tenant = made()
    assert read_tenant(tenant).limits is None
    tenant["spec"]["limits"] = {"requestsPerSecond": 2, "imagesPerDay": 5}
    assert read_tenant(tenant).limits == Limits(Budget(2, 2), None, None)
    base = {"name": "b", "source": {"uri": "http://assets/b"}}
    pool = {"metadata": META, "spec": {"baseModel": base, "tenancy": {"maxPriority": 3, "maxColour": "red"}}}
    assert read_pool(pool).tenancy.max_priority == 3
    assert read_pool(pool).window == 8192


def test_without_a_word_it_is_the_shared_set() -> None:
    assert read_tenant(made()).set is None
    assert read_adapter(made()).set == "shared"
    assert read_adapter(made(set="class-64")).set == "class-64"
