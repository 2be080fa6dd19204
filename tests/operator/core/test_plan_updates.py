"""Whole plans: versions that change, go and come back."""

from dataclasses import replace

import pytest

from lorafleet_contracts.admin import Problem, ProblemCode, VersionPhase
from lorafleet_contracts.conditions import ConditionType
from lorafleet_contracts.resources.sources import Signer, Trust
from lorafleet_operator.core.actions import Inspect, Load, Plan, Unload
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.residency import GRACE_SECONDS
from lorafleet_operator.core.snapshot import (
    Attempt,
    InspectionKey,
    Memory,
    PoolSnapshot,
)
from lorafleet_operator.core.sources import trust_mark
from tests.support.fleet import (
    NOW,
    PREFIX,
    carry_out,
    digest_of,
    make_replica,
    make_state,
    make_version,
)
from tests.support.plans import LATER, change_adapter, pick, ready_snapshot, status_of, word


def test_a_new_version_loads_beside_the_old_and_the_old_goes_after_the_flip() -> None:
    snapshot = ready_snapshot()
    old = digest_of(f"{PREFIX}pirate")
    new = digest_of(f"{PREFIX}pirate-2")
    snapshot = change_adapter(snapshot, source={"uri": f"{PREFIX}pirate-2"})
    first = plan_pool(snapshot, NOW)
    assert word(status_of(first, "pirate"), ConditionType.READY) == ("False", "Inspecting")
    assert word(status_of(first, "pirate"), ConditionType.AVAILABLE) == ("True", "OldVersionServes")
    assert status_of(first, "pirate").digest == old
    snapshot = carry_out(snapshot, first)
    second = plan_pool(snapshot, NOW)
    assert [each.target.digest for each in pick(second, Load)] == [new]
    assert not pick(second, Unload)
    snapshot = carry_out(snapshot, second)
    flip = plan_pool(snapshot, NOW)
    assert status_of(flip, "pirate").digest == new
    assert not pick(flip, Unload)
    snapshot = carry_out(snapshot, flip)
    waiting = plan_pool(snapshot, NOW)
    assert waiting.again_in == pytest.approx(GRACE_SECONDS)
    assert not waiting.actions
    snapshot = carry_out(snapshot, waiting)
    assert [each.target.digest for each in pick(plan_pool(snapshot, LATER), Unload)] == [old]


def test_a_bad_new_version_leaves_the_old_one_serving() -> None:
    snapshot = change_adapter(ready_snapshot(), source={"uri": f"{PREFIX}broken"})
    problem = Problem(title="unsupported", status=422, code=ProblemCode.UNSUPPORTED_ADAPTER, reasons=["DoRA"])
    key = InspectionKey("uid-demo-pirate", 2)
    snapshot = replace(snapshot, memory=Memory(inspections={key: Attempt(False, NOW, 1, problem)}))
    plan = plan_pool(snapshot, LATER)
    status = status_of(plan, "pirate")
    assert word(status, ConditionType.STALLED) == ("True", "UnsupportedAdapter")
    assert word(status, ConditionType.READY) == ("False", "UnsupportedAdapter")
    assert word(status, ConditionType.AVAILABLE) == ("True", "OldVersionServes")
    assert status.digest == digest_of(f"{PREFIX}pirate")
    assert not plan.actions


def trusting(snapshot: PoolSnapshot, key: str) -> PoolSnapshot:
    """The same, once the pool takes only what the holder of a key has signed."""
    assert snapshot.pool.spec is not None
    trust = Trust(signers=[Signer(public_key=f"-----BEGIN PUBLIC KEY-----\n{key}\n")])
    pool = replace(snapshot.pool, spec=snapshot.pool.spec.model_copy(update={"trust": trust}))
    return replace(snapshot, pool=pool)


def refused(snapshot: PoolSnapshot, generation: int, code: ProblemCode = ProblemCode.SIGNATURE_REFUSED) -> PoolSnapshot:
    """The same, once its inspection has failed for long: for want of a good signature, if nothing else is said."""
    [inspect] = pick(plan_pool(snapshot, NOW), Inspect)
    assert inspect.fetch.source.signers
    problem = Problem(title="t", status=422, code=code, detail="no model.sig")
    attempt = Attempt(False, NOW, 9, problem, trust=trust_mark(inspect.fetch.source.signers))
    key = InspectionKey("uid-demo-pirate", generation)
    return replace(snapshot, memory=replace(snapshot.memory, inspections={key: attempt}))


def test_a_new_version_that_nobody_signed_leaves_the_old_one_serving() -> None:
    snapshot = trusting(ready_snapshot(), "a")
    for _ in range(3):
        snapshot = carry_out(snapshot, plan_pool(snapshot, LATER), LATER)
    status = snapshot.adapters[0].status
    assert (status.verified_generation, bool(status.verified_by)) == (1, True)

    snapshot = refused(change_adapter(snapshot, source={"uri": f"{PREFIX}unsigned"}), 2)
    plan = plan_pool(snapshot, LATER)
    assert word(status_of(plan, "pirate"), ConditionType.VERIFIED) == ("False", "SignatureRefused")
    assert word(status_of(plan, "pirate"), ConditionType.AVAILABLE) == ("True", "OldVersionServes")
    assert status_of(plan, "pirate").digest == digest_of(f"{PREFIX}pirate")
    assert not pick(plan, Unload)


def test_new_signers_have_everything_verified_anew_and_take_what_they_did_not_sign() -> None:
    asked = trusting(ready_snapshot(), "a")
    first = plan_pool(asked, NOW)
    assert len(pick(first, Inspect)) == 1
    assert status_of(first, "pirate").digest == digest_of(f"{PREFIX}pirate"), "it serves until that is known"
    assert not pick(first, Unload)
    assert status_of(plan_pool(refused(asked, 1), NOW), "pirate").digest is None
    # What was found for one signer says nothing of another.
    other = trusting(refused(asked, 1), "b")
    assert len(pick(plan_pool(other, NOW), Inspect)) == 1


@pytest.mark.parametrize(
    "code", [ProblemCode.SOURCE_UNREACHABLE, ProblemCode.SOURCE_DENIED, ProblemCode.CREDENTIALS_UNUSABLE]
)
def test_what_cannot_be_fetched_for_new_signers_serves_on(code: ProblemCode) -> None:
    snapshot = refused(trusting(ready_snapshot(), "a"), 1, code)
    plan = plan_pool(snapshot, NOW)
    status = status_of(plan, "pirate")
    assert word(status, ConditionType.VERIFIED)[0] == "False"
    assert word(status, ConditionType.AVAILABLE) == ("True", "OldVersionServes")
    assert status.digest == digest_of(f"{PREFIX}pirate")
    assert not pick(plan, Unload)
    assert len(pick(plan_pool(snapshot, NOW + 61), Inspect)) == 1, "it is tried on"


def test_a_serving_version_that_was_lost_during_an_update_is_loaded_again() -> None:
    snapshot = change_adapter(ready_snapshot(), source={"uri": f"{PREFIX}broken"})
    reborn = replace(snapshot, replicas=(make_replica(0, make_state(boot_id="boot-2")),))
    assert [each.target.digest for each in pick(plan_pool(reborn, NOW), Load)] == [digest_of(f"{PREFIX}pirate")]


def test_suspend_takes_it_from_the_routing_first_and_from_memory_after() -> None:
    snapshot = change_adapter(ready_snapshot(), suspend=True)
    first = plan_pool(snapshot, NOW)
    status = status_of(first, "pirate")
    assert status.digest is None
    assert word(status, ConditionType.READY) == ("False", "Suspended")
    assert word(status, ConditionType.STALLED)[0] == "False"
    assert not first.actions
    snapshot = carry_out(snapshot, first)
    waiting = plan_pool(snapshot, NOW)
    assert not waiting.actions
    snapshot = carry_out(snapshot, waiting)
    unload = plan_pool(snapshot, LATER)
    assert len(pick(unload, Unload)) == 1
    assert plan_pool(carry_out(snapshot, unload, LATER), LATER + 60) == Plan()


def test_what_is_recorded_describes_the_version_that_serves() -> None:
    snapshot = change_adapter(ready_snapshot(), source={"uri": f"{PREFIX}pirate-2"})
    snapshot = carry_out(snapshot, plan_pool(snapshot, NOW))
    [load] = pick(plan_pool(snapshot, NOW), Load)
    broken = Problem(title="t", status=422, code=ProblemCode.UNSUPPORTED_ADAPTER, reasons=["DoRA"])
    loads = {load.target: Attempt(False, NOW, 1, broken)}
    status = status_of(plan_pool(replace(snapshot, memory=replace(snapshot.memory, loads=loads)), NOW), "pirate")
    assert word(status, ConditionType.STALLED) == ("True", "UnsupportedAdapter")
    assert status.verified_digest == status.digest == digest_of(f"{PREFIX}pirate")
    assert status.verified_generation == 1


def test_a_deleted_adapter_is_unloaded_at_once() -> None:
    snapshot = ready_snapshot()
    assert len(pick(plan_pool(replace(snapshot, adapters=()), NOW), Unload)) == 1
    dying = replace(snapshot.adapters[0], meta=replace(snapshot.adapters[0].meta, deleting=True))
    plan = plan_pool(replace(snapshot, adapters=(dying,)), NOW)
    assert len(pick(plan, Unload)) == 1
    assert not plan.statuses


def test_an_unload_is_not_repeated_while_it_runs_or_drains() -> None:
    snapshot = replace(ready_snapshot(), adapters=())
    [unload] = pick(plan_pool(snapshot, NOW), Unload)
    running = replace(snapshot, memory=Memory(unloads={unload.target: Attempt(pending=True, at=NOW)}))
    assert not plan_pool(running, NOW).actions
    draining = make_state(make_version(unload.target.uid, unload.target.digest, VersionPhase.DRAINING))
    assert not plan_pool(replace(snapshot, replicas=(make_replica(0, draining),)), NOW).actions


def test_a_spec_that_declares_the_verified_digest_needs_no_inspection_and_no_load() -> None:
    snapshot = ready_snapshot()
    digest = digest_of(f"{PREFIX}pirate")
    for uri in ("pirate", "mirror"):
        declared = change_adapter(snapshot, source={"uri": f"{PREFIX}{uri}", "digest": digest})
        plan = plan_pool(declared, NOW)
        assert not plan.actions
        assert word(status_of(plan, "pirate"), ConditionType.READY) == ("True", "Ready")
        assert status_of(plan, "pirate").verified_generation == 2
    other = change_adapter(snapshot, source={"uri": f"{PREFIX}pirate", "digest": digest_of("other")})
    assert len(pick(plan_pool(other, NOW), Inspect)) == 1


def test_a_replaced_version_gets_its_grace_though_no_condition_changed_at_the_flip() -> None:
    snapshot = ready_snapshot()
    old, new = digest_of(f"{PREFIX}pirate"), digest_of(f"{PREFIX}pirate-2")
    snapshot = change_adapter(snapshot, source={"uri": f"{PREFIX}pirate-2"})
    long_after = NOW + 3600
    # The words of progress are never written: the verdict of the new generation comes first.
    for _ in range(2):
        plan = plan_pool(snapshot, long_after)
        snapshot = carry_out(snapshot, replace(plan, statuses=()), long_after)
    flip = plan_pool(snapshot, long_after)
    assert status_of(flip, "pirate").digest == new
    snapshot = carry_out(snapshot, flip, long_after)
    waiting = plan_pool(snapshot, long_after)
    assert not waiting.actions
    assert [each.digest for each in waiting.surplus] == [old]
    snapshot = carry_out(snapshot, waiting, long_after)
    assert not plan_pool(snapshot, long_after + GRACE_SECONDS - 1).actions
    assert len(pick(plan_pool(snapshot, long_after + GRACE_SECONDS), Unload)) == 1
