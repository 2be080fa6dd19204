"""What the API server itself refuses, defaults and shows: the CRDs on a real kube-apiserver."""

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from e2e.cluster.apiserver import ApiServer
from lorafleet_contracts.crd import KINDS, definition
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_kube.access import load_access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_kube.errors import ApiError

pytestmark = pytest.mark.apiserver

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "/apis/lorafleet.io/v1alpha1/namespaces/default"
SHA = "sha256:" + "0" * 64
POOL: dict[str, Any] = {"baseModel": {"name": "smol", "source": {"uri": "http://assets/smollm2"}}}
ADAPTER: dict[str, Any] = {"poolRef": {"name": "smol"}, "source": {"uri": "http://assets/adapters/pirate"}}
TENANT: dict[str, Any] = {"poolRef": {"name": "smol"}}
SPECS = {"LoraPool": POOL, "LoraAdapter": ADAPTER, "Tenant": TENANT}
PLURALS = {kind.name: kind.plural for kind in KINDS}


@pytest.fixture
async def api(apiserver: ApiServer) -> AsyncIterator[KubeApi]:
    async with connect(await load_access(str(apiserver.kubeconfig))) as connected:
        for kind in KINDS:
            body = definition(kind)
            await connected.apply(f"{CRDS}/{body['metadata']['name']}", body, manager="tests", force=True)
        for kind in KINDS:
            await established(connected, f"{kind.plural}.lorafleet.io")
        yield connected
        for kind in KINDS:
            await connected.request("DELETE", f"{GROUP}/{kind.plural}")


async def established(api: KubeApi, name: str) -> None:
    for _ in range(100):
        found = await api.get(f"{CRDS}/{name}")
        conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", [])}
        assert conditions.get("NonStructuralSchema") != "True", found["status"]["conditions"]
        if conditions.get("Established") == "True":
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} was never established")


async def create(api: KubeApi, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    body = {"apiVersion": "lorafleet.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    return await api.apply(f"{GROUP}/{PLURALS[kind]}/{name}", body, manager="tests", force=True)


def with_value(kind: str, path: str, value: object) -> dict[str, Any]:
    spec = copy.deepcopy(SPECS[kind])
    *parents, last = path.split(".")
    target = spec
    for parent in parents:
        target = target.setdefault(parent, {})
    target[last] = value
    return spec


@pytest.mark.parametrize("kind", SPECS)
async def test_the_smallest_object_is_accepted(api: KubeApi, kind: str) -> None:
    await create(api, kind, f"smallest-{kind.lower()}", SPECS[kind])


async def test_the_server_fills_in_the_models_defaults(api: KubeApi) -> None:
    stored = await create(api, "LoraPool", "defaults", POOL)
    filled = LoraPoolSpec.model_validate(stored["spec"])
    assert filled == LoraPoolSpec.model_validate(POOL)
    assert stored["spec"]["replicas"] == {
        "min": 1, "redundancy": 1, "mode": "Managed", "desired": 1, "scaleDownAfter": "5m",
    }  # fmt: skip
    assert stored["spec"]["engine"]["memory"]["gpuUtilizationPercent"] == 92


@pytest.mark.parametrize(
    ("kind", "path", "value", "says"),
    [
        ("LoraPool", "replicas.min", 0, "replicas.min"),
        ("LoraPool", "replicas", {"min": 3, "max": 2}, "replicas.max must not be below replicas.min"),
        ("LoraPool", "replicas.desired", 2, "set mode: External"),
        ("LoraPool", "replicas", {"mode": "External", "desired": 0}, "replicas.desired"),
        ("LoraPool", "baseModel.source.uri", "ftp://host/x", "baseModel.source.uri"),
        ("LoraPool", "baseModel.name", "has space", "baseModel.name"),
        ("LoraPool", "targetModules", ["q_proj", "lm_head"], "targetModules"),
        ("LoraPool", "targetModules", [], "targetModules"),
        ("LoraPool", "engine.device", "TPU", "engine.device"),
        ("LoraPool", "engine", {"device": "CPU", "dtype": "bfloat16"}, "device: CPU needs dtype: float32"),
        ("LoraPool", "engine", {"dtype": "float32", "quantization": "FP8"}, "quantization: FP8 needs dtype: bfloat16"),
        ("LoraPool", "engine.memory.hostCache", "lots", "hostCache"),
        ("LoraPool", "allowedNamespaces", {"from": "Selector"}, "selector goes with from: Selector"),
        ("LoraPool", "allowedNamespaces", {"from": "All", "selector": {}}, "selector goes with from: Selector"),
        ("LoraAdapter", "source.digest", "sha256:abc", "source.digest"),
        ("LoraAdapter", "model", "-dash", "model"),
        ("LoraAdapter", "minReplicas", 0, "minReplicas"),
        ("Tenant", "apiKeys", [{"id": "k1", "sha256": "plain"}], "sha256"),
        ("Tenant", "apiKeys", [{"id": "K_1", "sha256": "0" * 64}], "apiKeys"),
        ("Tenant", "adapters.names", ["a/b/c"], "adapters.names"),
        ("Tenant", "apiKeys", [{"id": "k", "sha256": "0" * 64, "expiresAt": "tomorrow"}], "expiresAt"),
    ],
)
async def test_nonsense_is_refused_by_field(api: KubeApi, kind: str, path: str, value: object, says: str) -> None:
    with pytest.raises(ApiError) as caught:
        await create(api, kind, "nonsense", with_value(kind, path, value))
    assert caught.value.code == 422
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("kind", "path", "first", "second"),
    [
        ("LoraPool", "baseModel.name", "one", "two"),
        ("LoraPool", "baseModel.source.uri", "http://a/x", "http://b/x"),
        ("LoraPool", "baseModel.digest", SHA, SHA[:-1] + "1"),
        ("LoraPool", "engine.dtype", "float32", "bfloat16"),
        ("LoraPool", "engine.quantization", "None", "FP8"),
        ("LoraAdapter", "poolRef.name", "one", "two"),
        ("Tenant", "poolRef.name", "one", "two"),
    ],
)
async def test_immutable_fields(api: KubeApi, kind: str, path: str, first: str, second: str) -> None:
    name = "fixed-" + path.replace(".", "-").lower()
    await create(api, kind, name, with_value(kind, path, first))
    with pytest.raises(ApiError, match="immutable"):
        await create(api, kind, name, with_value(kind, path, second))


async def test_a_digest_cannot_be_dropped(api: KubeApi) -> None:
    await create(api, "LoraPool", "dropped", with_value("LoraPool", "baseModel.digest", SHA))
    with pytest.raises(ApiError, match="immutable"):
        await create(api, "LoraPool", "dropped", POOL)


@pytest.mark.parametrize(
    ("kind", "length"), [("LoraPool", 40), ("LoraAdapter", 63), ("Tenant", 63)], ids=lambda value: str(value)
)
async def test_names_are_bounded(api: KubeApi, kind: str, length: int) -> None:
    await create(api, kind, "n" * length, SPECS[kind])
    with pytest.raises(ApiError, match=f"at most {length} characters"):
        await create(api, kind, "n" * (length + 1), SPECS[kind])


async def test_status_is_a_subresource(api: KubeApi) -> None:
    stored = await create(api, "Tenant", "status", TENANT)
    body = {**{key: stored[key] for key in ("apiVersion", "kind")}, "metadata": {"name": "status"}}
    path = f"{GROUP}/tenants/status"
    await api.apply(path, {**body, "spec": TENANT, "status": {"keys": 3}}, manager="tests", force=True)
    assert (await api.get(path))["status"]["keys"] == 0
    await api.apply(f"{path}/status", {**body, "status": {"keys": 3, "adapters": 0}}, manager="tests", force=True)
    after = await api.get(path)
    assert after["status"]["keys"] == 3
    assert after["metadata"]["generation"] == stored["metadata"]["generation"]


async def test_the_scale_subresource_of_an_external_pool_and_the_refusal_of_a_managed_one(api: KubeApi) -> None:
    path = f"{GROUP}/lorapools/scaled"
    await create(api, "LoraPool", "scaled", with_value("LoraPool", "replicas", {"min": 1, "max": 4}))
    patch = {"spec": {"replicas": 3}}
    with pytest.raises(ApiError, match="set mode: External"):
        await api.request("PATCH", f"{path}/scale", body=patch, content_type="application/merge-patch+json")
    external = with_value("LoraPool", "replicas", {"min": 1, "max": 4, "mode": "External"})
    await create(api, "LoraPool", "scaled", external)
    await api.request("PATCH", f"{path}/scale", body=patch, content_type="application/merge-patch+json")
    assert (await api.get(path))["spec"]["replicas"]["desired"] == 3
    body = {"apiVersion": "lorafleet.io/v1alpha1", "kind": "LoraPool", "metadata": {"name": "scaled"}}
    status = {"replicas": 2, "selector": "lorafleet.io/pool=scaled,lorafleet.io/set=shared"}
    await api.apply(f"{path}/status", {**body, "status": status}, manager="tests", force=True)
    scale = await api.get(f"{path}/scale")
    assert (scale["spec"]["replicas"], scale["status"]) == (3, status)
    kept = await create(api, "LoraPool", "scaled", external)
    assert kept["spec"]["replicas"]["desired"] == 3, "an apply of the manifest leaves the size to who scales"


async def test_keys_merge_entry_by_entry(api: KubeApi) -> None:
    """A GitOps apply without keys leaves alone what `lorafleet key create` owns."""
    await create(api, "Tenant", "keys", TENANT)
    body = {"apiVersion": "lorafleet.io/v1alpha1", "kind": "Tenant", "metadata": {"name": "keys"}}
    key = {**body, "spec": {**TENANT, "apiKeys": [{"id": "k1", "sha256": "0" * 64}]}}
    await api.apply(f"{GROUP}/tenants/keys", key, manager="lorafleet-key-k1", force=False)
    stored = await create(api, "Tenant", "keys", TENANT)
    assert [each["id"] for each in stored["spec"]["apiKeys"]] == ["k1"]
