"""Laws of the routing table over random fleets."""

from hypothesis import given
from hypothesis import strategies as st

from lorafleet_contracts.resources.schema import LabelSelector
from lorafleet_gateway.core.records import Adapter, Tenant
from lorafleet_gateway.core.rejections import Rejection
from lorafleet_gateway.core.table import Table
from tests.gateway.core.records import ALL, DIGEST, make_adapter, make_table, make_tenant

NAMESPACES = st.sampled_from(["a", "b", "c"])
NAMES = st.sampled_from(["x", "y", "z"])
LABELS = {"a": {"team": "a"}, "b": {"team": "b"}, "c": {}}
SELECTORS = st.sampled_from([None, ALL, LabelSelector(match_labels={"team": "a"})])
ADAPTERS = st.builds(
    make_adapter,
    NAMESPACES,
    NAMES,
    model=st.sampled_from(["m", "n"]),
    created=st.integers(1, 3),
    digest=st.sampled_from([None, DIGEST]),
    shared_with=SELECTORS,
    labels=st.sampled_from([(), (("team", "a"),)]),
)
TENANTS = st.builds(
    make_tenant,
    NAMESPACES,
    selector=SELECTORS,
    base=st.booleans(),
    names=st.frozensets(st.one_of(NAMES, st.tuples(NAMESPACES, NAMES).map("/".join)), max_size=5),
)
FLEETS = st.lists(ADAPTERS, max_size=9, unique_by=lambda each: each.key)


def allowed(tenant: Tenant, adapter: Adapter) -> bool:
    """The rule, written without an index."""
    namespace, name = adapter.key
    named = f"{namespace}/{name}" in tenant.names
    if namespace == tenant.key[0]:
        chosen = tenant.selector is not None and tenant.selector.match_labels.items() <= dict(adapter.labels).items()
        return named or name in tenant.names or chosen
    shared = adapter.shared_with
    return named and shared is not None and shared.match_labels.items() <= LABELS[tenant.key[0]].items()


def rank(tenant: Tenant, adapter: Adapter) -> tuple[bool, int, tuple[str, str]]:
    return adapter.key[0] != tenant.key[0], adapter.created, adapter.key


def resolved(table: Table, tenant: Tenant, name: str) -> str | None:
    try:
        model = table.resolve(tenant, name)
    except Rejection:
        return None
    return f"{model.owner}/{model.version}"


@given(FLEETS, TENANTS)
def test_law_a_name_means_the_best_of_what_the_tenant_may_call(fleet: list[Adapter], tenant: Tenant) -> None:
    table = make_table(*fleet, a=LABELS["a"], b=LABELS["b"])
    for name in ("m", "n"):
        candidates = [each for each in fleet if each.model == name and allowed(tenant, each)]
        best = min(candidates, key=lambda each: rank(tenant, each), default=None)
        assert resolved(table, tenant, name) == (best and f"{best.key[0]}/{best.version}")


@given(FLEETS, TENANTS)
def test_law_the_list_is_exactly_what_resolves(fleet: list[Adapter], tenant: Tenant) -> None:
    table = make_table(*fleet, a=LABELS["a"], b=LABELS["b"])
    listed = [model.name for model in table.list_models(tenant)]
    assert listed == [name for name in ("base-model", "m", "n") if resolved(table, tenant, name)]
