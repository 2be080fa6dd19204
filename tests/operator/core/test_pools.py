"""What a pool's status says of its replicas."""

from dataclasses import replace

import pytest

from lorafleet_contracts.admin import BaseState, Problem, ProblemCode
from lorafleet_contracts.conditions import ConditionType, find_condition
from lorafleet_contracts.resources.pool import LoraPoolStatus
from lorafleet_operator.core.pools import judge_pool, refuse_pool
from lorafleet_operator.core.sets import EngineSet
from lorafleet_operator.core.snapshot import PoolSnapshot, Replica, Workload
from tests.support.fleet import NOW, make_pool, make_replica, make_snapshot, make_state

TWO = {"replicas": {"min": 2}}


def judge(snapshot: PoolSnapshot, *more: EngineSet) -> LoraPoolStatus | None:
    """The verdict as the planning asks for it."""
    spec = snapshot.pool.spec
    sets = (EngineSet("shared", "Shared", spec.replicas.min), *more) if spec else ()
    return judge_pool(snapshot, refuse_pool(snapshot.pool, snapshot.cluster_wide), sets, NOW)


def fleet(*replicas: Replica, status: LoraPoolStatus | None = None, settled: bool = True) -> PoolSnapshot:
    """A pool of two replicas."""
    return make_snapshot(
        pool=make_pool(status=status, **TWO),
        replicas=replicas,
        workloads={"shared": Workload(replicas=2, settled=settled)},
    )


def words(status: LoraPoolStatus | None) -> dict[str, tuple[str, str]]:
    """type -> (status, reason)."""
    assert status is not None
    return {each.type: (each.status, each.reason) for each in status.conditions}


def test_a_starting_pool_is_on_its_way_and_not_degraded() -> None:
    told = words(judge(fleet(make_replica(0))))
    assert told["Ready"] == ("True", "Ready")
    assert told["Reconciling"] == ("True", "Progressing")
    assert told["Degraded"] == ("False", "Progressing")


def test_a_full_pool_is_redundant_and_shows_counts_and_budget() -> None:
    small = make_state(budget=7)
    status = judge(fleet(make_replica(0), make_replica(1, small)))
    assert words(status)["Degraded"] == ("False", "FullyRedundant")
    assert words(status)["Reconciling"] == ("False", "Reconciled")
    assert status is not None
    assert (status.replicas, status.ready_replicas, status.sets[0].ready) == (2, 2, 2)
    assert status.budget is not None
    assert status.budget.adapters == 7
    assert status.selector == "lorafleet.io/pool=smol,lorafleet.io/set=shared"


def test_every_set_is_told_and_the_scale_subresource_sees_the_shared_one() -> None:
    replicas = (
        make_replica(0),
        make_replica(1),
        make_replica(0, set="class-64"),
        make_replica(0, set="merged-0a0a0a0a"),
    )
    split = EngineSet("class-64", "RankClass", 2, ceiling=64)
    status = judge(fleet(*replicas), split)
    assert status is not None
    assert (status.replicas, status.ready_replicas) == (2, 2)
    assert [(each.name, each.kind, each.ceiling, each.replicas, each.ready) for each in status.sets] == [
        ("shared", "Shared", None, 2, 2),
        ("class-64", "RankClass", 64, 1, 1),
        ("merged-0a0a0a0a", "Merged", None, 1, 1),
    ]
    assert words(status)["Reconciling"] == ("True", "Progressing")


def test_a_pool_without_shared_replicas_does_not_answer_the_base() -> None:
    split = EngineSet("class-64", "RankClass", 1, ceiling=64)
    status = judge(fleet(make_replica(0, set="class-64")), split)
    assert words(status)["Ready"] == ("False", "NoReplicaReady")
    assert status is not None
    assert status.ready_replicas == 0


def test_a_rollout_is_over_when_its_controller_says_so() -> None:
    told = words(judge(fleet(make_replica(0), make_replica(1), settled=False)))
    assert told["Reconciling"] == ("True", "Progressing")


def test_losing_one_of_two_is_a_lost_redundancy_and_losing_both_is_not_ready() -> None:
    full = judge(fleet(make_replica(0), make_replica(1)))
    one = judge(fleet(make_replica(0), make_replica(1, ready=False), status=full))
    assert words(one)["Degraded"] == ("True", "RedundancyLost")
    assert words(one)["Ready"][0] == "True"
    none = judge(fleet(make_replica(0, ready=False), make_replica(1, ready=False), status=one))
    assert words(none)["Ready"] == ("False", "NoReplicaReady")
    assert none is not None
    assert none.budget is not None


def test_a_rollout_is_progress_and_old_replicas_do_not_make_the_new_spec_ready() -> None:
    told = words(judge(fleet(make_replica(0, current=False), make_replica(1, current=False), settled=False)))
    assert told["Ready"] == ("False", "NoReplicaReady")
    assert told["Reconciling"][0] == "True"


@pytest.mark.parametrize("waiting", ["CrashLoopBackOff", "ImagePullBackOff", "Unschedulable"])
def test_a_stuck_pod_stalls_the_pool_with_its_own_words(waiting: str) -> None:
    stuck = Replica("smol-shared-0", False, False, True, None, waiting, "no such file: config.json")
    status = judge(fleet(stuck))
    assert words(status)["Stalled"] == ("True", "NoReplicaReady")
    assert status is not None
    message = find_condition(status.conditions, ConditionType.READY).message  # type: ignore[union-attr]
    assert message == f"replica smol-shared-0 is in {waiting}: no such file: config.json"


def test_a_base_that_no_device_can_hold_stalls_the_pool_as_that() -> None:
    full = Replica("smol-shared-0", False, False, True, None, "BaseDoesNotFit", "the base model needs 15 bytes")
    status = judge(fleet(full))
    assert words(status)["Stalled"] == ("True", "BaseDoesNotFit")
    assert status is not None
    message = find_condition(status.conditions, ConditionType.READY).message  # type: ignore[union-attr]
    assert message.startswith("replica smol-shared-0: the base model needs 15 bytes. Ask for a larger GPU")


def test_a_pod_that_just_starts_is_not_stuck() -> None:
    starting = Replica("smol-shared-0", False, False, True, None, "ContainerCreating")
    assert words(judge(fleet(starting)))["Stalled"][0] == "False"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(ProblemCode.DOES_NOT_FIT, "BaseDoesNotFit"), (ProblemCode.SOURCE_UNREACHABLE, "NoReplicaReady")],
)
def test_the_engines_own_problem_with_the_base_is_told(code: ProblemCode, reason: str) -> None:
    problem = Problem(title="base", status=500, code=code, detail="the base needs 15 GB")
    state = make_state(ready=False, memory=None, base=BaseState(name="smollm2", problem=problem))
    status = judge(fleet(make_replica(0, state, ready=False)))
    assert words(status)["Stalled"] == ("True", reason)


def test_the_same_verdict_is_not_written_again() -> None:
    snapshot = fleet(make_replica(0), make_replica(1))
    assert judge(fleet(make_replica(0), make_replica(1), status=judge(snapshot))) is None


def test_refusals() -> None:
    assert refuse_pool(make_pool(), cluster_wide=False) is None
    selector = make_pool(allowedNamespaces={"from": "Selector", "selector": {}})
    assert refuse_pool(selector, cluster_wide=True) is None
    assert refuse_pool(selector, cluster_wide=False) is not None
    base = {"name": "smollm2", "source": {"uri": "pvc://models/base"}}
    assert refuse_pool(make_pool(baseModel=base), cluster_wide=True) is not None
    volume = {"dtype": "float32", "pod": {"volumes": [{"name": "models", "emptyDir": {}}]}}
    assert refuse_pool(make_pool(baseModel=base, engine=volume), cluster_wide=True) is None
    unreadable = replace(make_pool(), spec=None, invalid="spec.x: unknown")
    status = judge(make_snapshot(pool=unreadable))
    assert words(status)["Accepted"] == ("False", "Invalid")
    assert words(status)["Stalled"] == ("True", "Invalid")


@pytest.mark.parametrize(
    ("engine", "fine"),
    [
        ({}, False),
        ({"device": "CPU"}, False),
        ({"dtype": "float32"}, True),
        ({"pod": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}, True),
        ({"device": "CUDA"}, True),
    ],
)
def test_bfloat16_needs_a_gpu(engine: dict[str, object], fine: bool) -> None:
    refusal = refuse_pool(make_pool(engine=engine), cluster_wide=True)
    assert (refusal is None) == fine
    assert refusal is None or "dtype: float32" in refusal.message


@pytest.mark.parametrize(
    ("limits", "fine"),
    [
        ({}, True),
        ({"nvidia.com/gpu": "2"}, True),
        ({"nvidia.com/gpu": "1"}, False),
        ({"nvidia.com/mig-3g.71gb": "2"}, False),
    ],
)
def test_a_tensor_parallel_engine_needs_as_many_whole_gpus(limits: dict[str, str], fine: bool) -> None:
    engine = {"device": "CUDA", "tensorParallel": 2, "pod": {"resources": {"limits": limits}}}
    refusal = refuse_pool(make_pool(engine=engine), cluster_wide=True)
    assert (refusal is None) == fine
    assert refusal is None or "tensorParallel 2 needs nvidia.com/gpu: 2" in refusal.message


def test_what_the_api_server_refuses_is_told() -> None:
    snapshot = replace(fleet(make_replica(0)), refusals=("StatefulSet/smol-shared: spec: Invalid value",))
    assert words(judge(snapshot))["Stalled"] == ("True", "Invalid")
