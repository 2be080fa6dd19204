"""Which replicas, in which order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorafleet_contracts.admin import Tier
from lorafleet_gateway.core.records import Model
from lorafleet_gateway.core.rejections import Rejection
from lorafleet_gateway.core.residency import EngineView
from lorafleet_gateway.core.routing import MAX_HOSTS, Fleet, pick_route
from tests.gateway.core.records import POOL, make_replica, make_slice, make_table

VERSION = "uid@sha256:" + "a" * 64
ADAPTER = Model("m", VERSION, 0, "acme", "base-model")
BASE = Model("base-model", "base", 0, "serving", None)


def view(tier: Tier | None = Tier.GPU, **fields: Any) -> EngineView:
    versions = {} if tier is None else {VERSION: tier}
    defaults = {"boot_id": "b", "seq": 1, "serves_base": True, "draining": False, "load": 0, "versions": versions}
    return EngineView(**{**defaults, **fields})


def order(views: dict[int, EngineView | None], model: Model = ADAPTER, **counts: dict[int, int]) -> list[int]:
    """The picked replicas by number, of a set with exactly these."""
    fleet = Fleet(
        views={make_replica(n): each for n, each in views.items() if each is not None},
        **{name: {make_replica(n): count for n, count in found.items()} for name, found in counts.items()},
    )
    route = pick_route(make_table(slices=(make_slice(*views),)), fleet, POOL, model)
    if route is None:
        return []
    assert route.version == model.version
    return [int(each.serving.split(":")[0].split(".")[3]) for each in route.replicas]


def code(views: dict[int, EngineView | None], model: Model = ADAPTER) -> str:
    with pytest.raises(Rejection) as rejected:
        order(views, model)
    assert rejected.value.status == 503
    assert rejected.value.retry_after
    return rejected.value.code


def test_residency_goes_before_load_and_the_unknown_come_last() -> None:
    views = {1: None, 2: view(Tier.DISK), 3: view(Tier.HOST), 4: view(Tier.GPU, load=99)}
    assert order(views) == [4, 3, 2, 1]


def test_a_replica_that_lacks_the_version_is_left_out() -> None:
    assert order({1: view(None), 2: view()}) == [2]
    assert order({1: view(None), 2: view(None)}) == []


def test_among_equals_the_least_loaded_by_report_and_by_own_picks() -> None:
    assert order({1: view(load=3), 2: view(load=1), 3: view(load=2)}) == [2, 3, 1]
    assert order({1: view(load=3), 2: view(load=1)}, recent_picks={2: 5}) == [1, 2]
    assert order({1: view(), 2: view()}, picks={1: 7, 2: 6}) == [2, 1]


def test_draining_and_unready_replicas_get_nothing() -> None:
    assert order({1: view(draining=True), 2: view(serves_base=False), 3: view()}) == [3]
    assert code({1: view(draining=True)}) == "model_not_ready"
    assert code({1: view(draining=True)}, BASE) == "model_not_ready"
    assert code({}) == "model_not_ready"


def test_a_version_that_serves_nowhere_yet_is_not_ready() -> None:
    assert code({1: view(), 2: None}, Model("m", None, 0, "acme", "base-model")) == "adapter_not_ready"


def test_the_base_is_everywhere() -> None:
    assert order({1: view(None, load=1), 2: view(), 3: None}, BASE) == [2, 1, 3]


@given(
    st.dictionaries(
        st.integers(1, 40),
        st.one_of(
            st.none(), st.builds(view, st.sampled_from([*Tier, None]), load=st.integers(0, 9), draining=st.booleans())
        ),
    )
)
def test_law_only_replicas_that_may_hold_it_at_most_max_hosts_and_stable(views: dict[int, EngineView | None]) -> None:
    able = {n for n, each in views.items() if each is None or (VERSION in each.versions and not each.draining)}
    try:
        picked = order(views)
    except Rejection:
        assert not able
        return
    assert set(picked) <= able
    assert len(picked) == len(set(picked)) == min(MAX_HOSTS, len(able))
    assert picked == order(dict(reversed(views.items())))


PRIVATE, MERGED, CLASS = "private-0a1b2c3d", "merged-0a1b2c3d", "class-64"


def across(model: Model, views: dict[int, EngineView | None], **sets: tuple[int, ...]) -> tuple[str, list[int]] | None:
    """The set and the replicas by number that a model is sent to, over several sets (`_` stands for `-`)."""
    fleet = Fleet(views={make_replica(n): each for n, each in views.items() if each is not None})
    slices = tuple(make_slice(*numbers, set=name.replace("_", "-")) for name, numbers in sets.items())
    route = pick_route(make_table(slices=slices), fleet, POOL, model)
    return route and (route.set.set, [int(each.serving.split(":")[0].split(".")[3]) for each in route.replicas])


def for_sets(*sets: str) -> Model:
    return Model("m", VERSION, 0, "acme", "base-model", sets)


def test_a_tenants_own_set_comes_first_and_the_shared_one_is_among_the_hosts() -> None:
    model = for_sets(MERGED, "shared")
    views = {1: view(load=50), 2: view(), 3: view()}
    assert across(model, views, merged_0a1b2c3d=(1,), shared=(2, 3)) == (MERGED, [1, 2, 3])
    many = {n: view() for n in range(1, 8)}
    assert across(model, many, merged_0a1b2c3d=(1, 2, 3, 4, 5), shared=(6, 7)) == (MERGED, [1, 2, 3, 6])


def test_without_a_usable_replica_that_has_the_version_it_is_the_next_set() -> None:
    model = for_sets(MERGED, "shared")
    for gone in (view(None), view(draining=True), view(serves_base=False)):
        assert across(model, {1: gone, 2: view()}, merged_0a1b2c3d=(1,), shared=(2,)) == ("shared", [2])
    assert across(model, {2: view()}, shared=(2,)) == ("shared", [2])
    assert across(model, {1: None, 2: view()}, merged_0a1b2c3d=(1,), shared=(2,)) == ("shared", [2, 1])
    assert across(model, {1: view(None), 2: view(None)}, merged_0a1b2c3d=(1,), shared=(2,)) is None


def test_what_may_run_on_a_tenants_own_replicas_only_waits_for_them() -> None:
    model = for_sets(PRIVATE)
    assert across(model, {1: view(), 2: view()}, private_0a1b2c3d=(1,), shared=(2,)) == (PRIVATE, [1])
    assert across(model, {1: view(None), 2: view()}, private_0a1b2c3d=(1,), shared=(2,)) is None
    for refused in (model, for_sets()):
        with pytest.raises(Rejection) as rejected:
            across(refused, {2: view()}, shared=(2,))
        assert (rejected.value.code, rejected.value.retry_after) == ("model_not_ready", 2)


def test_while_an_adapter_moves_both_sets_may_answer() -> None:
    model = for_sets(CLASS, "shared")
    assert across(model, {1: view(), 2: view()}, class_64=(1,), shared=(2,)) == (CLASS, [1, 2])
    assert across(model, {1: view(), 2: view(None)}, class_64=(1,), shared=(2,)) == (CLASS, [1])
