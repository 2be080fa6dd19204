"""A replica's memory: what was predicted, what engines report, and what can't fit before any pod exists."""

from dataclasses import asdict, replace

import pytest

from lorafleet_contracts.admin import BaseState, MemoryState, ShapeState
from lorafleet_contracts.capacity import ModelShape, kv_bytes_per_token, plan_memory, shard_shape, weight_bytes
from lorafleet_contracts.resources.pool import LoraPoolSpec, LoraPoolStatus, ShapeStatus
from lorafleet_operator.core.actions import Apply
from lorafleet_operator.core.budgets import refuse_base, refuse_files
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.pools import refuse_pool
from lorafleet_operator.core.snapshot import Replica
from tests.support.fleet import NOW, make_pool, make_replica, make_snapshot, make_state

QWEN = ModelShape(28, 3584, 18944, 28, 4, 128, 152064, attention_bias=True)
SHAPE = ShapeStatus(**asdict(QWEN))
GB = 10**9
ENGINE = {"dtype": "bfloat16", "pod": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}


def engine(total: int = 73_600_000_000, extra: int = 0, parallel: int = 1, shape: ModelShape | None = QWEN) -> Replica:
    """A replica with 80 GB at 92 %, whose weights take `extra` bytes more than they should."""
    own = shard_shape(QWEN, parallel)
    plan = plan_memory(total, weight_bytes(own) + extra, 4 * GB, kv_bytes_per_token(own))
    memory = MemoryState(
        total=total, weights=plan.weights, activations=plan.activations, adapters=plan.adapters, adapters_used=0,
        kv=plan.kv, kv_tokens=plan.kv_tokens, kv_tokens_used=0,
    )  # fmt: skip
    told = ShapeState(**asdict(shape)) if shape else None
    return make_replica(0, make_state(memory=memory, base=BaseState(name="qwen", shape=told)))


def verdict(replica: Replica, status: LoraPoolStatus | None = None, **engine_spec: object) -> LoraPoolStatus:
    """The pool's status after one plan."""
    pool = make_pool(status=status, engine={**ENGINE, **engine_spec})
    plan = plan_pool(make_snapshot(pool=pool, replicas=(replica,)), NOW)
    [written] = [each.status for each in plan.statuses if each.kind == "LoraPool"]
    assert isinstance(written, LoraPoolStatus)
    return written


def test_the_status_has_what_engines_report_and_what_was_predicted() -> None:
    budget = verdict(engine()).budget
    assert budget is not None
    assert budget.predicted is not None
    assert budget.predicted.difference_percent == 0
    assert (budget.predicted.weights, budget.predicted.adapters) == (budget.weights, budget.adapters)
    assert budget.weights == weight_bytes(QWEN)
    assert verdict(engine()).shape == SHAPE


def test_tensor_parallel_engines_are_predicted_for_one_gpu() -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    budget = verdict(engine(parallel=2), tensorParallel=2, pod=limits).budget
    assert budget is not None
    assert budget.predicted is not None
    assert budget.predicted.difference_percent == 0


@pytest.mark.parametrize(("extra", "percent", "events"), [(GB // 20, 1, 0), (GB // 2, 4, 1)])
def test_a_difference_is_shown_and_past_two_percent_told(extra: int, percent: int, events: int) -> None:
    pool = make_pool(engine=ENGINE)
    snapshot = make_snapshot(pool=pool, replicas=(engine(extra=extra),))
    plan = plan_pool(snapshot, NOW)
    [written] = [each.status for each in plan.statuses if each.kind == "LoraPool"]
    assert isinstance(written, LoraPoolStatus)
    assert written.budget is not None
    assert written.budget.predicted is not None
    assert written.budget.predicted.difference_percent == percent
    assert len(plan.warnings) == events
    for warning in plan.warnings:
        assert warning.reason == "BudgetDiffers"
        assert f"{percent} % off" in warning.message
    said = replace(snapshot, pool=replace(pool, status=written.model_copy(update={"replicas": 9})))
    assert not plan_pool(said, NOW).warnings, "once"


def test_without_a_shape_nothing_is_predicted_and_a_shape_once_told_stays() -> None:
    silent = verdict(engine(shape=None))
    assert (silent.shape, silent.budget.predicted if silent.budget else 1) == (None, None)
    known = verdict(engine(shape=None), LoraPoolStatus(shape=SHAPE))
    assert known.shape == SHAPE
    assert known.budget is not None
    assert known.budget.predicted is not None


def test_what_cannot_be_is_not_predicted() -> None:
    uneven = verdict(engine(), tensorParallel=8, pod={"resources": {"limits": {"nvidia.com/gpu": "8"}}}).budget
    assert uneven is not None
    assert uneven.predicted is None
    tiny = verdict(engine(), dtype="float32", quantization="None").budget
    assert tiny is not None
    huge = ShapeStatus(**{**asdict(QWEN), "layers": 1000})
    none = verdict(engine(), LoraPoolStatus(shape=huge)).budget
    assert none is not None
    assert none.predicted is None


def spec(weights: str | None = None, slices: str = "nvidia.com/mig-1g.10gb", **engine_spec: object) -> LoraPoolSpec:
    """A pool on a slice of a GPU."""
    base = {"name": "qwen2.5-7b", "source": {"uri": "http://assets/base"}, **({"weights": weights} if weights else {})}
    limits = {"dtype": "bfloat16", "pod": {"resources": {"limits": {slices: "1"}}}, **engine_spec}
    return LoraPoolSpec.model_validate({"baseModel": base, "engine": limits})


def test_a_base_too_large_for_its_slice_is_refused_before_any_pod_exists() -> None:
    pool = replace(make_pool(), spec=spec("15.22G"))
    plan = plan_pool(make_snapshot(pool=pool, replicas=(), workloads={}), NOW)
    assert not [each for each in plan.actions if isinstance(each, Apply)]
    [written] = [each.status for each in plan.statuses if each.kind == "LoraPool"]
    told = {each.type: (each.status, each.reason) for each in written.conditions}
    assert told["Accepted"] == ("False", "BaseDoesNotFit")
    assert told["Stalled"] == ("True", "BaseDoesNotFit")
    message = written.conditions[0].message
    assert "15220000000 bytes" in message
    assert "nvidia.com/mig-1g.10gb of 10000000000 bytes" in message
    assert "leaves 9200000000" in message


@pytest.mark.parametrize(
    ("wanted", "status", "refused"),
    [
        (spec("15.22G", "nvidia.com/mig-3g.40gb"), LoraPoolStatus(), False),
        (spec("15.22G", "nvidia.com/gpu"), LoraPoolStatus(), False),
        (spec(), LoraPoolStatus(), False),
        (spec(), LoraPoolStatus(shape=SHAPE), True),
        (spec("1G"), LoraPoolStatus(shape=SHAPE), True),
        (spec("15.22G", quantization="FP8"), LoraPoolStatus(), False),
        (spec("19G", quantization="FP8"), LoraPoolStatus(), True),
        (spec(quantization="FP8"), LoraPoolStatus(shape=SHAPE), False),
        (spec("9.1G", memory={"gpuUtilizationPercent": 90}), LoraPoolStatus(), True),
    ],
)
def test_only_what_surely_cannot_fit_is_refused(wanted: LoraPoolSpec, status: LoraPoolStatus, refused: bool) -> None:
    assert (refuse_base(wanted, "engine.pod", status) is not None) is refused


@pytest.mark.parametrize(
    ("own", "where"),
    [
        ({}, None),
        ({"nodeSelector": {"gpu": "small"}}, None),
        ({"resources": {"limits": {"nvidia.com/mig-3g.40gb": "1"}}}, None),
        ({"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}, "mig-1g.10gb of 10000000000 bytes, which ded"),
        ({"resources": {"limits": {"cpu": "4"}}}, "dedicated.pod.resources.limits asks for none"),
    ],
)
def test_what_tenants_own_replicas_would_be_made_of_is_judged_before_there_are_any(
    own: dict[str, object], where: str | None
) -> None:
    wanted = spec("15.22G", "nvidia.com/gpu", memory={"diskCache": "40Gi"}).wire() | {"dedicated": {"pod": own}}
    pool = replace(make_pool(), spec=LoraPoolSpec.model_validate(wanted))
    refusal = refuse_pool(pool, cluster_wide=True)
    assert (refusal and where in refusal.message) if where else refusal is None


def test_a_base_that_no_pod_can_fetch_is_refused_before_there_is_one() -> None:
    pool = replace(make_pool(), spec=spec("15.22G", "nvidia.com/gpu", memory={"diskCache": "10Gi"}))
    plan = plan_pool(make_snapshot(pool=pool, replicas=(), workloads={}), NOW)
    assert not [each for each in plan.actions if isinstance(each, Apply)]
    [written] = [each.status for each in plan.statuses if each.kind == "LoraPool"]
    told = {each.type: (each.status, each.reason) for each in written.conditions}
    assert told["Accepted"] == ("False", "BaseDoesNotFit")
    assert "at least 15220000000 bytes" in written.conditions[0].message
    assert "diskCache, 10Gi (10737418240 bytes)" in written.conditions[0].message


@pytest.mark.parametrize(
    ("wanted", "source", "refused"),
    [
        (spec("16.1G", "nvidia.com/gpu"), "https://assets/base", False),
        (spec("15.22G", "nvidia.com/gpu", memory={"diskCache": "10Gi"}), "https://assets/base", True),
        (spec("15.22G", "nvidia.com/gpu", memory={"diskCache": "10Gi"}), "pvc://models/base", False),
        (spec("15.22G", "nvidia.com/gpu", memory={"diskCache": "16Gi"}), "https://assets/base", False),
        (spec("85G", "nvidia.com/gpu", dtype="float32"), "https://assets/base", False),
        (spec("87G", "nvidia.com/gpu", dtype="float32"), "https://assets/base", True),
        (spec(None, "nvidia.com/gpu"), "https://assets/base", False),
    ],
)
def test_only_what_surely_cannot_be_fetched_is_refused(wanted: LoraPoolSpec, source: str, refused: bool) -> None:
    base = wanted.base_model.model_copy(update={"source": wanted.base_model.source.model_copy(update={"uri": source})})
    assert (refuse_files(wanted.model_copy(update={"base_model": base})) is not None) is refused
