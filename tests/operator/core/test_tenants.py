"""When a tenant is Ready, and what it is told else."""

from dataclasses import replace

import pytest

from lorafleet_contracts.conditions import ConditionType, find_condition
from lorafleet_contracts.resources.tenant import TenantStatus
from lorafleet_operator.core.snapshot import Tenant
from lorafleet_operator.core.tenants import index_adapters, judge_tenant, next_expiry
from tests.support.fleet import NOW, make_adapter, make_pool, make_tenant

SHARED = {"namespaceSelector": {"matchLabels": {"tier": "gold"}}}
ADAPTERS = (
    make_adapter("pirate", meta={"labels": {"style": "loud"}}),
    make_adapter("poet"),
    make_adapter("translate", "tools", sharedWith=SHARED),
    make_adapter("private", "tools"),
)
NAMESPACES = {"demo": {}, "team": {"tier": "gold"}, "tools": {}}
PAST, FUTURE = "2026-01-01T00:00:00Z", "2027-06-01T00:00:00Z"


def judge(tenant: Tenant, now: float = NOW, **pool: object) -> TenantStatus | None:
    """The status for a tenant of a pool that admits all namespaces unless told otherwise."""
    wanted = make_pool(**{"allowedNamespaces": {"from": "All"}, **pool})
    assert wanted.spec is not None
    return judge_tenant(tenant, (wanted.meta, wanted.spec), index_adapters(ADAPTERS), NAMESPACES, now)


def ready(status: TenantStatus | None) -> tuple[str, str, str]:
    """(status, reason, message) of Ready."""
    assert status is not None
    condition = find_condition(status.conditions, ConditionType.READY)
    assert condition is not None
    return condition.status, condition.reason, condition.message


@pytest.mark.parametrize(
    ("namespace", "adapters", "count"),
    [
        ("demo", {}, 0),
        ("demo", {"selector": {}}, 2),
        ("demo", {"selector": {"matchLabels": {"style": "loud"}}}, 1),
        ("demo", {"selector": {}, "names": ["pirate"]}, 2),
        ("demo", {"names": ["pirate", "demo/poet"]}, 2),
        ("team", {"names": ["tools/translate"]}, 1),
        ("team", {"selector": {}}, 0),
    ],
)
def test_names_and_selectors_resolve(namespace: str, adapters: dict[str, object], count: int) -> None:
    status = judge(make_tenant("acme", namespace, adapters=adapters))
    assert ready(status)[:2] == ("True", "Ready")
    assert status is not None
    assert (status.adapters, status.keys) == (count, 1)


@pytest.mark.parametrize(
    ("namespace", "name"),
    [("demo", "absent"), ("demo", "tools/translate"), ("team", "tools/private"), ("team", "pirate")],
)
def test_a_name_that_leads_nowhere_is_told(namespace: str, name: str) -> None:
    word, reason, message = ready(judge(make_tenant("acme", namespace, adapters={"names": [name]})))
    assert (word, reason) == ("False", "AdapterNotFound")
    assert name in message


def test_long_lists_of_missing_names_are_cut() -> None:
    names = [f"n{index}" for index in range(9)]
    assert "n4 and 4 more" in ready(judge(make_tenant("acme", adapters={"names": names})))[2]


@pytest.mark.parametrize(
    ("expiries", "keys"), [((PAST,), 0), (("some day",), 0), ((FUTURE,), 1), ((None, PAST, FUTURE), 2), ((), 0)]
)
def test_expired_keys_do_not_count(expiries: tuple[str | None, ...], keys: int) -> None:
    entries = [
        {"id": f"k{index}", "sha256": "0" * 64, **({"expiresAt": expiry} if expiry else {})}
        for index, expiry in enumerate(expiries)
    ]
    tenant = make_tenant("acme", apiKeys=entries)
    status = judge(tenant)
    assert status is not None
    assert status.keys == keys
    assert ready(status)[1] == ("Ready" if keys else "NoValidKey")
    assert (next_expiry([tenant], NOW) is not None) == (FUTURE in expiries)


def test_a_pool_that_does_not_admit_the_namespace_is_told() -> None:
    status = judge(make_tenant("acme", "team"), allowedNamespaces={"from": "Same"})
    assert ready(status)[1] == "NamespaceNotAllowed"
    assert status is not None
    assert find_condition(status.conditions, ConditionType.ACCEPTED).status == "False"  # type: ignore[union-attr]


def test_an_unreadable_tenant_is_invalid() -> None:
    assert ready(judge(replace(make_tenant("acme"), spec=None, invalid="spec.x")))[1] == "Invalid"


def test_the_same_verdict_is_not_written_again_and_times_are_kept() -> None:
    tenant = make_tenant("acme")
    status = judge(tenant)
    assert status is not None
    assert judge(replace(tenant, status=status), NOW + 100) is None
    renewed = replace(tenant, status=status, meta=replace(tenant.meta, generation=2))
    later = judge(renewed, NOW + 100)
    assert later is not None
    assert later.observed_generation == 2
    assert [each.last_transition_time for each in later.conditions] == [
        each.last_transition_time for each in status.conditions
    ]
