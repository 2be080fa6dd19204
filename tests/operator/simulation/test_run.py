"""Whole runs: the real plan_pool over simulated engines."""

from dataclasses import replace

import numpy as np
import pytest

from lorafleet_contracts.capacity import plan_memory
from lorafleet_contracts.resources.pool import CapacityStatus, LoraPoolStatus
from lorafleet_operator.simulation.batch import step_time
from lorafleet_operator.simulation.calls import Files
from lorafleet_operator.simulation.demand import members_of
from lorafleet_operator.simulation.engines import EngineProfile
from lorafleet_operator.simulation.measures import reason_of
from lorafleet_operator.simulation.run import Case, Loss, simulate
from lorafleet_operator.simulation.traffic import (
    COMPLETION_TOKENS,
    Burst,
    Caller,
    add_burst,
    even_times,
    overlay,
    plain,
)
from tests.support.fleet import make_adapter, make_pool, make_tenant

SIZE = 80_000_000
MEMORY = plan_memory(130_000_000_000, 15_000_000_000, 4_000_000_000, 57_344)


def make_case(adapters: int = 6, rps: float = 5.0, seconds: float = 600.0, **changes: object) -> Case:
    """Adapters of one tenant on two replicas, minReplicas 1."""
    objects = tuple(make_adapter(f"a{number}") for number in range(adapters))
    callers = [Caller("demo/t", each.meta.uid) for each in objects]
    groups = [[place] for place in range(adapters)]
    files = {each.meta.uid: Files(f"http://{each.meta.name}", SIZE, 16, ("q_proj",), "smollm2") for each in objects}
    arrivals = overlay(plain(even_times(rps, seconds)), groups, 1.0, np.random.default_rng(0))
    step = step_time(8.0, 10.0, float(COMPLETION_TOKENS), members_of(callers, arrivals, files))
    case = Case(
        pool=make_pool(replicas={"min": 2}),
        adapters=objects,
        tenants=(make_tenant("t"),),
        namespaces={"demo": {}},
        files=files,
        profile=EngineProfile("smollm2", MEMORY, step),
        callers=callers,
        arrivals=arrivals,
        seconds=seconds,
    )
    return replace(case, **changes)


def test_every_request_is_answered_from_the_gpu_in_calm_times() -> None:
    outcome = simulate(make_case())
    assert sum(outcome.callers.requests) == 3000
    assert sum(outcome.callers.cold) == sum(outcome.callers.unserved) == 0
    assert 1 <= outcome.loads <= 6, "the hot ones get a second replica, and nothing else moves"
    assert [reason_of(each) for each in outcome.adapters] == [""] * 6
    assert set(outcome.tiers.values()) == {"gpu"}
    assert {each.gpus for each in outcome.samples} == {2}


def test_the_same_case_gives_the_same_outcome() -> None:
    assert simulate(make_case()) == simulate(make_case())


def test_a_lost_replica_s_adapters_are_missed_until_they_are_loaded_elsewhere() -> None:
    outcome = simulate(make_case(losses=(Loss(at=100.0, place=0),)))
    missed = [each.unserved for each in outcome.samples]
    assert missed[0] == 0
    assert 0 < missed[1] < 60
    assert sum(missed[3:]) == 0
    assert outcome.loads >= 1


def test_an_adapter_that_does_not_fit_says_so() -> None:
    case = make_case(adapters=2)
    uid = case.adapters[1].meta.uid
    huge = replace(case.files[uid], bytes=MEMORY.adapters + 1)
    outcome = simulate(replace(case, files={**case.files, uid: huge}))
    reasons = [reason_of(each) for each in outcome.adapters]
    assert reasons[0] == ""
    assert reasons[1].startswith("DoesNotFit")
    assert sum(outcome.callers.unserved) == outcome.callers.requests[1] > 0


def test_above_its_capacity_a_replica_makes_requests_wait() -> None:
    still = make_pool(replicas={"min": 2}, placement={"maxMovesPerHour": 0})
    calm = simulate(make_case(adapters=1, rps=4.0, pool=still))
    busy = simulate(make_case(adapters=1, rps=12.0, pool=still))
    assert calm.wait[1] < 0.5
    assert busy.wait[1] > 60
    assert calm.wait[0] == pytest.approx(0.0, abs=0.01)
    found = busy.pool.status.capacity
    assert found is not None
    assert (found.source, found.penalty_percent) == ("Measured", None), "one adapter's ranks are always the same"
    assert float(found.value) == pytest.approx(0.95 * 8.0, rel=0.1)


def test_the_operator_tells_by_the_engines_steps_what_adapters_take() -> None:
    found = simulate(make_case(rps=19.0, pool=make_pool(replicas={"min": 2}))).pool.status.capacity
    assert found is not None
    assert found.source == "Measured"
    assert found.penalty_percent == pytest.approx(14, abs=5), "below 20, as fewer of them share a replica's steps"
    assert float(found.value) == pytest.approx(9.5, rel=0.1)


def test_a_capacity_that_was_found_too_small_grows_with_what_idle_replicas_could_do() -> None:
    case = make_case(rps=4.0, seconds=480.0, pool=make_pool(replicas={"min": 2, "max": 20}), replicas=7)
    small = CapacityStatus(value="1", tokens="640", source="Measured", penalty_percent=0)
    outcome = simulate(replace(case, pool=replace(case.pool, status=LoraPoolStatus(capacity=small))))
    found = outcome.pool.status.capacity
    assert found is not None
    assert float(found.value) > 1.4
    assert outcome.samples[0].gpus == 7
    assert outcome.samples[-1].gpus < 6


def test_the_operator_s_own_sizing_adds_replicas_under_load() -> None:
    pool = make_pool(replicas={"min": 1, "max": 6})
    outcome = simulate(make_case(adapters=8, rps=20.0, seconds=1200.0, pool=pool))
    assert outcome.samples[0].gpus >= 1
    assert outcome.samples[-1].gpus >= 4  # 20 / 8, and one to lose
    assert sum(outcome.callers.requests) == 24_000


def test_a_heavy_tenant_gets_a_merged_replica_and_gives_it_back_without_a_failed_request() -> None:
    promotion = {"promoteAfter": "2m", "demoteAfter": "3m"}
    pool = make_pool(replicas={"min": 2, "max": 6}, promotion=promotion)
    calm = make_case(adapters=6, rps=4.0, seconds=3600.0)
    tenants = tuple(
        make_tenant(name, adapters={"names": [each.meta.name]})
        for name, each in zip("abcdef", calm.adapters, strict=True)
    )
    callers = [Caller(f"demo/{name}", each.meta.uid) for name, each in zip("abcdef", calm.adapters, strict=True)]
    burst = Burst("demo/c", 300.0, 1500.0, 8.0)
    arrivals = add_burst(calm.arrivals, burst, callers, np.random.default_rng(1))
    outcome = simulate(replace(calm, pool=pool, tenants=tenants, callers=callers, arrivals=arrivals))
    own = [sum(count for name, count in each.sets.items() if name.startswith("merged-")) for each in outcome.samples]
    assert max(own) >= 1
    assert own[0] == own[-1] == 0
    assert sum(outcome.callers.unserved) == 0
    assert {each.tenant for each in outcome.stages} == {"demo/c"}
    way = ["Warming", "Checking", "CuttingOver", "Dedicated", "Draining", "Shared"]
    assert [each.stage for each in outcome.stages] == way
