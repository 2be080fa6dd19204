"""On a quantised pool every adapter says what the rounding of the base does to it; on others none does."""

from dataclasses import replace

import pytest

from lorafleet_contracts.admin import QualityState
from lorafleet_contracts.conditions import Condition, ConditionType, find_condition
from lorafleet_operator.core.manifests.engine import _environment
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.snapshot import PoolSnapshot
from tests.support.fleet import NOW, carry_out, make_adapter, make_pool, make_snapshot, make_state

GPU = {"dtype": "bfloat16", "pod": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}


def snapshot_of(quantization: str) -> PoolSnapshot:
    pool = make_pool(engine={**GPU, "quantization": quantization})
    return make_snapshot(pool=pool, adapters=(make_adapter("pirate"),))


def settle(snapshot: PoolSnapshot) -> PoolSnapshot:
    for _ in range(8):
        plan = plan_pool(snapshot, NOW)
        if not plan.actions and not plan.statuses:
            return snapshot
        snapshot = carry_out(snapshot, plan)
    raise AssertionError("the plans do not come to an end")


def tell(snapshot: PoolSnapshot, quality: QualityState | None) -> PoolSnapshot:
    """The replica's state with this news of its version."""
    (replica,) = snapshot.replicas
    assert replica.state is not None
    versions = [each.model_copy(update={"quality": quality}) for each in replica.state.versions]
    return replace(snapshot, replicas=(replace(replica, state=make_state(*versions)),))


def checked(snapshot: PoolSnapshot) -> Condition | None:
    return find_condition(snapshot.adapters[0].status.conditions, ConditionType.QUALITY_CHECKED)


@pytest.mark.parametrize(("passed", "word", "reason"), [(True, "True", "QualityKept"), (False, "False", "QualityLost")])
def test_the_verdict_comes_after_ready(passed: bool, word: str, reason: str) -> None:
    waiting = settle(snapshot_of("FP8"))
    before = checked(waiting)
    assert before is not None
    assert (before.status, before.reason) == ("Unknown", "CheckingQuality")
    ready = find_condition(waiting.adapters[0].status.conditions, ConditionType.READY)
    assert ready is not None
    assert ready.status == "True"
    quality = QualityState(rel_l2=0.0312, same_argmax=0.975, positions=160, passed=passed)
    told = settle(tell(waiting, quality))
    found = checked(told)
    assert found is not None
    assert (found.status, found.reason) == (word, reason)
    assert "0.031" in found.message
    assert "97.5% of 160 positions" in found.message


def test_the_last_digit_is_no_news() -> None:
    quality = QualityState(rel_l2=0.03, same_argmax=1.0, positions=160, passed=True)
    told = settle(tell(settle(snapshot_of("FP8")), quality))
    for news in (None, quality.model_copy(update={"rel_l2": 0.034})):
        assert plan_pool(tell(told, news), NOW).statuses == ()
    lost = settle(tell(told, quality.model_copy(update={"rel_l2": 0.2, "passed": False})))
    found = checked(lost)
    assert found is not None
    assert found.status == "False"


def test_other_pools_say_nothing_of_it() -> None:
    snapshot = settle(snapshot_of("None"))
    assert checked(snapshot) is None
    spec = snapshot.pool.spec
    assert spec is not None
    assert "LORAFLEET_QUANTIZATION" not in {each["name"] for each in _environment(spec, None)}
    spec = snapshot_of("FP8").pool.spec
    assert spec is not None
    assert {"name": "LORAFLEET_QUANTIZATION", "value": "fp8"} in _environment(spec, None)
