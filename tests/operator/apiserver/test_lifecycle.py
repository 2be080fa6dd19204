"""The operator against a real API server: from apply to Ready, updates, removals, verdicts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from e2e.cluster.apiserver import ApiServer
from lorafleet_contracts.admin import AdapterReport, Problem, ProblemCode
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_kube.paths import SECRETS
from lorafleet_kube.reflector import Change, Collection, Reflector
from lorafleet_operator.core.actions import StatusWrite
from lorafleet_operator.shell.cluster import Cluster
from lorafleet_operator.shell.kinds import EVENTS, LORA_ADAPTERS, SERVICES, STATEFUL_SETS
from lorafleet_operator.shell.lease import Lease
from tests.support.operator_process import OperatorProcess
from tests.support.stub_engine import SIZE, StubEngine
from tests.support.team import Object, Team, eventually, make_team

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(180)]


@asynccontextmanager
async def adapter_changes(api: KubeApi, namespace: str) -> AsyncIterator[list[Change[str]]]:
    """Every version of every adapter from now on, status writes among them."""
    changes: list[Change[str]] = []
    path = LORA_ADAPTERS.path(namespace)
    reflector = Reflector(api, Collection(path), lambda found: found["metadata"]["resourceVersion"], changes.append)
    watching = asyncio.create_task(reflector.run())
    await reflector.synced.wait()
    try:
        yield changes
    finally:
        watching.cancel()


async def serving(team: Team) -> tuple[StubEngine, Object]:
    """A pool with one engine and adapter `pirate`, Ready."""
    await team.pool()
    await team.settle_set()
    engine = await team.engine()
    await team.adapter("pirate")
    return engine, await team.condition("LoraAdapter", "pirate", "Ready", "True")


async def until_resident(engine: StubEngine, *keys: str) -> None:
    """Wait until exactly these versions are in memory."""

    async def ask() -> bool:
        return engine.resident() == set(keys)

    await eventually(ask, what=f"only {keys} resident, not {engine.resident()}")


async def test_applied_in_any_order_everything_becomes_ready(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    await team.tenant("acme", "pirate")
    await team.condition("Tenant", "acme", "Stalled", "True", "PoolNotFound")
    await team.adapter("pirate")
    await team.condition("LoraAdapter", "pirate", "Stalled", "True", "PoolNotFound")
    await team.pool()
    await team.condition("Tenant", "acme", "Ready", "True")
    await team.condition("LoraAdapter", "pirate", "Verified", "Unknown", "AwaitingReplica")
    await team.settle_set()
    engine = await team.engine()
    found = await team.condition("LoraAdapter", "pirate", "Ready", "True")
    await team.condition("LoraPool", "smol", "Ready", "True")
    assert engine.resident() == {f"{found['metadata']['uid']}@{found['status']['digest']}"}
    assert found["status"]["placements"][0]["reason"] == "LeastLoaded"
    for kind, name in (("LoraPool", "smol"), ("LoraAdapter", "pirate"), ("Tenant", "acme")):
        meta = (await team.get(kind, name))["metadata"]
        assert "finalizers" not in meta
        assert "annotations" not in meta
    pool = await team.get("LoraPool", "smol")
    for path in (STATEFUL_SETS, SERVICES):
        owned = await api.get(path.path(team.namespace, "smol-shared"))
        assert owned["metadata"]["ownerReferences"][0]["uid"] == pool["metadata"]["uid"]
    keys = await api.get(SECRETS.path(operator.namespace, "lorafleet-port-keys"))
    assert set(keys["data"]) == {"serving", "state", "admin"}
    assert "Traceback" not in operator.log


async def test_at_most_two_writes_until_ready_and_none_after_a_second_apply(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    await serving(team)
    async with adapter_changes(api, team.namespace) as changes:
        await team.adapter("poet")
        await team.condition("LoraAdapter", "poet", "Ready", "True")
        await asyncio.sleep(1)
        mine = [each for each in changes if each.key == (team.namespace, "poet")]
        assert 2 <= len(mine) <= 3, "the creation and at most two status writes"
        changes.clear()
        await team.pool()
        await team.adapter("poet")
        await team.adapter("pirate")
        await asyncio.sleep(2)
        assert changes == []


async def test_an_update_loads_beside_and_moves_the_digest_and_a_bad_one_leaves_the_old(
    team: Team, operator: OperatorProcess
) -> None:
    engine, found = await serving(team)
    uid, old = found["metadata"]["uid"], found["status"]["digest"]
    await team.adapter("pirate", "http://assets/pirate-2")
    found = await team.condition("LoraAdapter", "pirate", "Ready", "True")
    new = found["status"]["digest"]
    assert new != old
    assert engine.resident() == {f"{uid}@{old}", f"{uid}@{new}"}
    await until_resident(engine, f"{uid}@{new}")
    engine.refusals["http://assets/broken"] = Problem(
        title="unsupported", status=422, code=ProblemCode.UNSUPPORTED_ADAPTER, reasons=["DoRA is not supported"]
    )
    await team.adapter("pirate", "http://assets/broken")
    found = await team.condition("LoraAdapter", "pirate", "Stalled", "True", "UnsupportedAdapter")
    assert found["status"]["digest"] == new
    await team.condition("LoraAdapter", "pirate", "Available", "True", "OldVersionServes")
    assert engine.resident() == {f"{uid}@{new}"}
    await team.adapter("pirate", "http://assets/pirate-2")
    await team.condition("LoraAdapter", "pirate", "Ready", "True")


async def test_suspended_and_deleted_adapters_leave_the_engine(team: Team, operator: OperatorProcess) -> None:
    engine, _ = await serving(team)
    await team.adapter("poet")
    poet = await team.condition("LoraAdapter", "poet", "Ready", "True")
    poet_key = f"{poet['metadata']['uid']}@{poet['status']['digest']}"
    await team.delete("LoraAdapter", "pirate")
    await until_resident(engine, poet_key)
    await team.adapter("poet", suspend=True)
    suspended = await team.condition("LoraAdapter", "poet", "Ready", "False", "Suspended")
    assert "digest" not in suspended["status"]
    await until_resident(engine)
    await team.adapter("poet", suspend=False)
    await team.condition("LoraAdapter", "poet", "Ready", "True")


async def test_a_restarted_engine_gets_its_adapters_back(team: Team, operator: OperatorProcess) -> None:
    engine, found = await serving(team)
    [key] = engine.resident()
    engine.restart()
    await until_resident(engine, key)
    again = await team.condition("LoraAdapter", "pirate", "Ready", "True")
    assert again["status"]["digest"] == found["status"]["digest"]


async def test_a_version_that_an_engine_loses_by_itself_comes_back(team: Team, operator: OperatorProcess) -> None:
    engine, _ = await serving(team)
    [key] = engine.resident()
    engine.lose(key)
    assert engine.resident() == set()
    await until_resident(engine, key)
    await team.condition("LoraAdapter", "pirate", "Ready", "True")


async def test_verdicts_name_what_is_wrong(api: KubeApi, team: Team, operator: OperatorProcess) -> None:
    engine, _ = await serving(team)
    found = engine.report("http://assets/x")
    engine.findings["http://assets/other-base"] = found.model_copy(update={"base": "other/model"})
    engine.findings["http://assets/huge"] = found.model_copy(update={"bytes": 1000 * SIZE})
    engine.findings["http://assets/warned"] = AdapterReport(
        digest=found.digest, bytes=SIZE, rank=4, target_modules=["q_proj"], warnings=["B is zero in layer 3"]
    )
    engine.refusals["http://assets/gone"] = Problem(title="404", status=502, code=ProblemCode.SOURCE_UNREACHABLE)
    wrong = {"uri": "http://assets/pinned", "digest": f"sha256:{'0' * 64}"}
    await team.adapter("pinned", source=wrong)
    await team.adapter("foreign", "http://elsewhere/x")
    await team.adapter("reserved", model="smollm2")
    await team.adapter("twin", model="pirate")
    for name in ("other-base", "huge", "warned", "gone"):
        await team.adapter(name)
    for name, reason in {
        "pinned": "DigestMismatch",
        "foreign": "SourceNotAllowed",
        "reserved": "NameReserved",
        "twin": "NameConflict",
        "other-base": "BaseMismatch",
        "huge": "DoesNotFit",
    }.items():
        await team.condition("LoraAdapter", name, "Stalled", "True", reason)
    warned = await team.condition("LoraAdapter", "warned", "Verified", "True", "VerifiedWithWarnings")

    async def told() -> list[Object]:
        events = (await api.get(EVENTS.path(team.namespace)))["items"]
        return [each for each in events if each["reason"] == "VerifiedWithWarnings"]

    [event] = await eventually(told, what="an event of the warnings")
    assert event["involvedObject"]["uid"] == warned["metadata"]["uid"]
    assert event["message"].startswith("B is zero in layer 3; BaseUndeclared")
    await team.condition("LoraAdapter", "gone", "Stalled", "True", "SourceUnreachable")
    engine.refusals.clear()
    await team.condition("LoraAdapter", "gone", "Ready", "True")


async def test_a_pool_tells_what_keeps_it_from_running(team: Team, operator: OperatorProcess) -> None:
    tolerations = [{"key": "k", "operator": "Nonsense"}]
    await team.pool(engine={"dtype": "float32", "pod": {"tolerations": tolerations}})
    found = await team.condition("LoraPool", "smol", "Stalled", "True", "Invalid")
    assert "Nonsense" in str(found["status"]["conditions"])
    await team.pool()
    await team.settle_set()
    await team.pod(0, "smol", "127.77.1.1")
    await team.pod_status(
        "smol-shared-0",
        "127.77.1.1",
        ready=False,
        containerStatuses=[
            {
                "name": "engine", "image": "x", "imageID": "", "ready": False, "restartCount": 3,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                "lastState": {"terminated": {"exitCode": 1, "message": "base source: 404 Not Found"}},
            }
        ],
    )  # fmt: skip
    found = await team.condition("LoraPool", "smol", "Stalled", "True", "NoReplicaReady")
    assert "base source: 404 Not Found" in str(found["status"]["conditions"])


async def test_a_pool_that_goes_leaves_orphans_and_is_not_made_again(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    await serving(team)
    await team.delete("LoraPool", "smol")
    await api.request("DELETE", STATEFUL_SETS.path(team.namespace, "smol-shared"))
    await team.condition("LoraAdapter", "pirate", "Stalled", "True", "PoolNotFound")
    await asyncio.sleep(1)
    assert (await api.get(STATEFUL_SETS.path(team.namespace)))["items"] == []


async def test_objects_that_others_change_or_delete_are_put_right(
    api: KubeApi, team: Team, operator: OperatorProcess
) -> None:
    await serving(team)
    path = STATEFUL_SETS.path(team.namespace, "smol-shared")
    await api.request("PATCH", path, body={"spec": {"replicas": 7}}, content_type="application/merge-patch+json")

    async def one_replica() -> bool:
        return bool((await api.get(path))["spec"]["replicas"] == 1)

    await eventually(one_replica, what="the StatefulSet's replicas are ours again")


async def test_an_operator_of_some_namespaces_leaves_the_others_alone(
    crds: ApiServer, api: KubeApi, team: Team, system: str
) -> None:
    async with make_team(api) as other:
        operator = OperatorProcess(crds.kubeconfig, system, LORAFLEET_WATCH_NAMESPACES=team.namespace)
        operator.start()
        try:
            await other.pool()
            await team.pool(allowedNamespaces={"from": "Selector", "selector": {}})
            await team.condition("LoraPool", "smol", "Stalled", "True", "Invalid")
            await team.pool(allowedNamespaces={"from": "Same"})
            await team.settle_set()
            await team.engine()
            await team.condition("LoraPool", "smol", "Ready", "True")
            assert "conditions" not in (await other.get("LoraPool", "smol"))["status"]
        finally:
            operator.stop()


async def test_a_verdict_never_lands_on_a_namesake(api: KubeApi, team: Team) -> None:
    found = await team.adapter("pirate")
    lease = Lease(api, (team.namespace, "lease"), "me", _nobody)
    await lease.acquire()
    meta = found["metadata"]
    write = StatusWrite("LoraAdapter", meta["namespace"], meta["name"], meta["uid"], LoraAdapterStatus(rank=1))
    await team.delete("LoraAdapter", "pirate")
    with pytest.raises(ApiError) as gone:
        await Cluster(api, lease).write_status(write, int(meta["resourceVersion"]))
    assert gone.value.code == 404
    namesake = await team.adapter("pirate")
    with pytest.raises(ApiError) as moved:
        await Cluster(api, lease).write_status(write, int(meta["resourceVersion"]))
    assert moved.value.code == 409
    assert "conditions" not in (await team.get("LoraAdapter", "pirate"))["status"]
    answer = await Cluster(api, lease).write_status(write, int(namesake["metadata"]["resourceVersion"]))
    assert answer["status"]["rank"] == 1


async def _nobody() -> list[Object]:
    return []
