"""What a name means to whom."""

import pytest

from lorafleet_contracts.resources.pool import AllowedNamespaces
from lorafleet_contracts.resources.schema import LabelSelector
from lorafleet_contracts.resources.tenancy import Tenancy
from lorafleet_contracts.resources.tenant import TenantLimits
from lorafleet_contracts.tenancy import TenantClaim
from lorafleet_gateway.core.records import Tenant
from lorafleet_gateway.core.rejections import Rejection
from lorafleet_gateway.core.table import SetKey, Table
from tests.gateway.core.records import (
    ALL,
    DIGEST,
    POOL,
    make_adapter,
    make_pool,
    make_replica,
    make_slice,
    make_table,
    make_tenant,
)


def owner(table: Table, tenant: Tenant, name: str) -> str | None:
    """The uid behind a name, None where it is refused."""
    try:
        version = table.resolve(tenant, name).version
    except Rejection:
        return None
    return version and version.partition("@")[0]


SHARED = make_adapter("lib", "french", shared_with=LabelSelector(match_labels={"team": "acme"}))
LABELLED = make_adapter("acme", "labelled", labels=(("tier", "gold"),))


@pytest.mark.parametrize(
    ("tenant", "name", "expected"),
    [
        (make_tenant("acme", "labelled"), "labelled", "acme-labelled"),
        (make_tenant("acme", "acme/labelled"), "labelled", "acme-labelled"),
        (make_tenant("acme", selector=ALL), "labelled", "acme-labelled"),
        (make_tenant("acme", selector=LabelSelector(match_labels={"tier": "gold"})), "labelled", "acme-labelled"),
        (make_tenant("acme", selector=LabelSelector(match_labels={"tier": "lead"})), "labelled", None),
        (make_tenant("acme"), "labelled", None),
        (make_tenant("acme", "labelled"), "Labelled", None),
        (make_tenant("acme", "labelled"), "absent", None),
        (make_tenant("acme", "lib/french"), "french", "lib-french"),
        (make_tenant("acme", "french", selector=ALL), "french", None),
        (make_tenant("globex", "lib/french"), "french", None),
        (make_tenant("globex", "acme/labelled"), "labelled", None),
        (make_tenant("globex", "labelled", selector=ALL), "labelled", None),
        (make_tenant("acme", "labelled", pool=("serving", "other")), "labelled", None),
    ],
)
def test_the_allowed_set(tenant: Tenant, name: str, expected: str | None) -> None:
    table = make_table(SHARED, LABELLED, acme={"team": "acme"}, globex={"team": "globex"})
    assert owner(table, tenant, name) == expected


def test_own_wins_over_shared_then_the_oldest() -> None:
    older_shared = make_adapter("lib", "one", model="m", created=1, shared_with=ALL)
    old_own = make_adapter("acme", "two", model="m", created=5)
    young_own = make_adapter("acme", "three", model="m", created=9)
    tenant = make_tenant("acme", "lib/one", selector=ALL)
    assert owner(make_table(older_shared, young_own, old_own), tenant, "m") == "acme-two"
    assert owner(make_table(older_shared, young_own), tenant, "m") == "acme-three"
    assert owner(make_table(older_shared), tenant, "m") == "lib-one"
    same_age = [make_adapter("acme", name, model="m", created=5) for name in ("b", "a")]
    assert owner(make_table(*same_age), tenant, "m") == "acme-a"


def test_a_missing_name_reads_like_a_foreign_one() -> None:
    table = make_table(LABELLED)
    messages = []
    for name in ("labelled", "absent"):
        with pytest.raises(Rejection) as rejected:
            table.resolve(make_tenant("globex", selector=ALL), name)
        assert (rejected.value.status, rejected.value.code) == (404, "model_not_found")
        messages.append(rejected.value.message.replace(name, "NAME"))
    assert messages[0] == messages[1]


def test_the_base_is_reserved_and_needs_leave() -> None:
    impostor = make_adapter("acme", "impostor", model="base")
    table = make_table(impostor)
    allowed, others = make_tenant("acme", "impostor", base=True), make_tenant("acme", "impostor")
    assert table.resolve(allowed, "base").version == "base"
    assert table.resolve(allowed, "base-model").is_base
    assert owner(table, others, "base") is None
    assert owner(table, others, "base-model") is None
    assert [model.name for model in table.list_models(allowed)] == ["base-model"]
    assert list(table.list_models(others)) == []


@pytest.mark.parametrize(
    ("allowed", "tenant_sees", "adapter_seen"),
    [
        ({"from": "Same"}, False, False),
        ({"from": "All"}, True, True),
        ({"from": "Selector", "selector": {"matchLabels": {"in": "yes"}}}, True, False),
    ],
)
def test_the_pool_decides_whom_it_admits(allowed: dict[str, object], tenant_sees: bool, adapter_seen: bool) -> None:
    pool = make_pool(allowed=AllowedNamespaces.model_validate(allowed))
    shared = make_adapter("lib", "s", shared_with=ALL)
    table = make_table(pool, make_adapter("acme", "own"), shared, acme={"in": "yes"}, lib={})
    tenant = make_tenant("acme", "own", "lib/s", base=True)
    assert (owner(table, tenant, "own") is not None) is tenant_sees
    assert (owner(table, tenant, "s") is not None) is adapter_seen
    assert bool(list(table.list_models(tenant))) is tenant_sees


def test_models_are_listed_with_owner_and_parent() -> None:
    table = make_table(LABELLED, make_adapter("acme", "cold", digest=None), make_adapter("globex", "g"))
    base, cold, labelled = table.list_models(make_tenant("acme", selector=ALL, base=True))
    assert (base.name, base.parent, base.owner, base.created) == ("base-model", None, "serving", 5)
    assert (cold.name, cold.version) == ("cold", None)
    assert (labelled.parent, labelled.owner, labelled.version) == ("base-model", "acme", f"acme-labelled@{DIGEST}")


def test_slices_of_a_set_are_joined_and_waiting_replicas_only_watched() -> None:
    foreign = make_slice(9, pool=("serving", "gone"))
    table = make_table(slices=(make_slice(2, 1), make_slice(3, waiting=(4,)), foreign))
    assert table.sets == {SetKey(POOL, "shared"): tuple(map(make_replica, (1, 2, 3)))}
    assert table.replicas == {make_replica(number): POOL for number in (1, 2, 3, 4)}


def test_a_pool_keeps_its_set_when_its_last_slice_goes() -> None:
    """Envoy would otherwise lose the cluster, and running streams with it."""
    assert make_table().sets == {SetKey(POOL, "shared"): ()}
    extra = make_table(slices=(make_slice(1, set="class-16"), make_slice(3, 2)))
    assert extra.sets[SetKey(POOL, "class-16")] == (make_replica(1),)
    assert extra.hosts() == {POOL: tuple(map(make_replica, (1, 2, 3)))}


def test_where_a_name_is_asked_for() -> None:
    table = make_table(
        make_adapter("acme", "small"),
        make_adapter("acme", "large", set="class-64"),
        make_adapter("acme", "huge", set="private-11111111"),
    )

    def sets(name: str, own: str | None = None, *, cut_over: bool = True, isolated: bool = False) -> tuple[str, ...]:
        where = {"own": own, "cut_over": cut_over, "isolated": isolated}
        return table.resolve(make_tenant("acme", "small", "large", "huge", base=True, **where), name).sets

    assert sets("small") == ("shared",)
    assert sets("large") == ("class-64", "shared")
    assert sets("base") == ("shared",)
    assert sets("large", "merged-22222222") == ("merged-22222222", "class-64", "shared")
    assert sets("base", "merged-22222222") == ("shared",), "it has no base any more"
    assert sets("base", "private-11111111") == ("private-11111111", "shared")
    assert sets("huge", "private-11111111") == ("private-11111111", "shared")
    assert sets("huge") == ("shared",), "another tenant's own set is not for this one"
    assert sets("huge", "private-11111111", cut_over=False) == ("private-11111111", "shared"), "what moves is followed"
    for name in ("small", "large", "huge", "base"):
        assert sets(name, "private-11111111", isolated=True) == ("private-11111111",)
        assert sets(name, "private-11111111", cut_over=False, isolated=True) == ()
        assert sets(name, isolated=True) == ()


def test_tenants_above_what_their_pool_leaves_for_the_namespace_are_known() -> None:
    capped = Tenancy(max_limits=TenantLimits(concurrent_requests=3))
    tenants = [
        make_tenant("acme", key=("acme", name), claim=TenantClaim(("acme", name), created, limits, "Shared"))
        for name, created, limits in (
            ("new", 2, TenantLimits(concurrent_requests=2)),
            ("old", 1, TenantLimits(concurrent_requests=2)),
            ("none", 3, TenantLimits()),
        )
    ]
    assert set(make_table(make_pool(tenancy=capped), *tenants).excess) == {("acme", "new"), ("acme", "none")}
    assert make_table(make_pool(), *tenants).excess == {}
    closed = make_pool(tenancy=capped, allowed=AllowedNamespaces())
    assert make_table(closed, *tenants).excess == {}  # not admitted at all
