"""A namespace with pools, adapters and tenants on a real API server, and stub engines as its pods.

Called by tests at API server height. It plays the controllers that a bare API server lacks: it makes the pods, sets
their statuses and that of the StatefulSet.
"""

import asyncio
import base64
import itertools
import ssl
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.binaries import locate
from e2e.cluster.paths import find_cache
from lorafleet_contracts.names import LABEL_TLS
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_kube.paths import NAMESPACES, PODS, SECRETS
from lorafleet_operator.shell.kinds import BY_NAME, LORA_ADAPTERS, LORA_POOLS, STATEFUL_SETS, TENANTS
from tests.support.stub_engine import StubEngine, run_stub_engine

ROOT = Path(__file__).resolve().parents[2]
MERGE_PATCH = "application/merge-patch+json"
TEMPLATE = "rev-1"
Object = dict[str, Any]
T = TypeVar("T")


def install_crds(apiserver: ApiServer) -> None:
    """Apply crds/ and wait until they are served."""
    kubectl = [str(locate(find_cache(), "kubectl")), "--kubeconfig", str(apiserver.kubeconfig)]
    files = [flag for path in sorted((ROOT / "crds").glob("*.yaml")) for flag in ("-f", str(path))]
    subprocess.run([*kubectl, "apply", *files], check=True, capture_output=True)
    names = [f"crd/{plural}.lorafleet.io" for plural in ("lorapools", "loraadapters", "tenants")]
    subprocess.run([*kubectl, "wait", "--for=condition=Established", *names], check=True, capture_output=True)


async def eventually(ask: Callable[[], Awaitable[T | None]], seconds: float = 45.0, what: str = "") -> T:
    """Ask until the answer is truthy."""
    end = time.monotonic() + seconds
    while True:
        answer = await ask()
        if answer:
            return answer
        assert time.monotonic() < end, f"not within {seconds} s: {what or ask}"
        await asyncio.sleep(0.1)


class Team:
    """One namespace. Engines that are added live until the end of the test."""

    _addresses = itertools.count(2)

    def __init__(self, api: KubeApi, namespace: str, stack: AsyncExitStack) -> None:
        self.api = api
        self.namespace = namespace
        self._stack = stack

    async def apply(self, kind: str, name: str, spec: Object, labels: dict[str, str] | None = None) -> Object:
        """What `kubectl apply --server-side` does."""
        body = {
            "apiVersion": "lorafleet.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace, **({"labels": labels} if labels else {})},
            "spec": spec,
        }
        return await self.api.apply(BY_NAME[kind].path(self.namespace, name), body, manager="user", force=True)

    async def pool(self, name: str = "smol", **spec: Any) -> Object:
        """A pool that allows http://assets/."""
        base = {"name": "smollm2", "source": {"uri": "http://assets/base"}}
        sources = {"allow": [{"prefix": "http://assets/"}]}
        wanted = {"baseModel": base, "sources": sources, "engine": {"dtype": "float32"}, **spec}
        return await self.apply("LoraPool", name, wanted)

    async def adapter(self, name: str, uri: str = "", **spec: Any) -> Object:
        """An adapter of pool `smol`."""
        wanted = {"poolRef": {"name": "smol"}, "source": {"uri": uri or f"http://assets/{name}"}, **spec}
        return await self.apply("LoraAdapter", name, wanted)

    async def tenant(self, name: str, *adapters: str, **spec: Any) -> Object:
        """A tenant of pool `smol` with one key."""
        keys = [{"id": "k1", "sha256": "0" * 64}]
        wanted = {"poolRef": {"name": "smol"}, "adapters": {"names": list(adapters)}, "apiKeys": keys, **spec}
        return await self.apply("Tenant", name, wanted)

    async def reach(self, tenant: str, stage: str, seconds: float = 60.0) -> Object:
        """Wait for a stage of a tenant's promotion; returns what its status says of it."""

        async def ask() -> Object | None:
            found = (await self.get("Tenant", tenant)).get("status", {}).get("promotion") or {}
            return found if found.get("stage") == stage else None

        return await eventually(ask, seconds, what=f"{tenant} in stage {stage}")

    async def has_set(self, engines: str, pool: str = "smol") -> bool:
        """Whether a set's StatefulSet is there."""
        try:
            await self.api.get(STATEFUL_SETS.path(self.namespace, f"{pool}-{engines}"))
        except ApiError as error:
            if error.code != 404:
                raise
            return False
        return True

    async def set_gone(self, engines: str, seconds: float = 45.0) -> None:
        """Wait until a set's StatefulSet has been deleted."""

        async def ask() -> bool:
            return not await self.has_set(engines)

        await eventually(ask, seconds, what=f"set {engines} is deleted")

    async def get(self, kind: str, name: str) -> Object:
        """One object."""
        return await self.api.get(BY_NAME[kind].path(self.namespace, name))

    async def delete(self, kind: str, name: str) -> None:
        """Delete one object."""
        await self.api.request("DELETE", BY_NAME[kind].path(self.namespace, name))

    async def condition(  # what is asked reads best in one line
        self, kind: str, name: str, condition: str, status: str, reason: str = "", *, seconds: float = 45.0
    ) -> Object:
        """Wait for a condition at the object's present generation; returns the object."""

        async def ask() -> Object | None:
            found = await self.get(kind, name)
            told = found.get("status", {})
            current = told.get("observedGeneration") == found["metadata"]["generation"]
            matches = (
                each["status"] == status and reason in ("", each["reason"])
                for each in told.get("conditions", [])
                if each["type"] == condition
            )
            return found if current and any(matches) else None

        try:
            return await eventually(ask, seconds)
        except AssertionError as error:
            found = await self.get(kind, name)
            raise AssertionError(f"{condition} of {name} is not {status} {reason}: {found.get('status')}") from error

    async def tokens(self, pool: str = "smol") -> dict[str, list[str]]:
        """The tokens that the operator put into the pool's Secret."""

        async def ask() -> Object | None:
            with suppress(ApiError):
                return await self.api.get(SECRETS.path(self.namespace, f"{pool}-tokens"))
            return None

        data = (await eventually(ask, what="the tokens"))["data"]
        return {port: base64.b64decode(text).decode().split() for port, text in data.items()}

    async def engine(
        self,
        index: int = 0,
        pool: str = "smol",
        engines: str = "shared",
        *,
        node: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> StubEngine:
        """A ready engine pod `POOL-SET-INDEX` with a stub behind it, on a node of that name if any."""
        ip = f"127.77.{next(self._addresses)}.{uuid.uuid4().int % 250 + 2}"
        engine = await self._stack.enter_async_context(run_stub_engine(ip, await self.tokens(pool), tls))
        await self.pod(index, pool, ip, engines, node=node, labels={LABEL_TLS: "true"} if tls else {})
        return engine

    async def pod(
        self,
        index: int,
        pool: str,
        ip: str,
        engines: str = "shared",
        *,
        node: str = "",
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Make a pod, run it and say it is ready."""
        name = f"{pool}-{engines}-{index}"
        usual = {
            "lorafleet.io/pool": pool,
            "lorafleet.io/set": engines,
            "controller-revision-hash": TEMPLATE,
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": usual | dict(labels)},
            "spec": {"containers": [{"name": "engine", "image": "registry.test/engine:1"}], "nodeName": node},
        }
        await self.api.request("POST", PODS.path(self.namespace), body=body)
        await self.pod_status(name, ip, ready=True)

    async def pod_status(self, name: str, ip: str, ready: bool, **status: Any) -> None:
        """Play the kubelet."""
        conditions = [{"type": "Ready", "status": str(ready)}]
        wanted = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions, **status}
        await self._patch(PODS.path(self.namespace, name, "status"), {"status": wanted})

    async def settle_set(self, pool: str = "smol", engines: str = "shared") -> None:
        """Play the StatefulSet controller: all replicas run the newest template."""

        async def ask() -> Object | None:
            with suppress(ApiError):
                return await self.api.get(STATEFUL_SETS.path(self.namespace, f"{pool}-{engines}"))
            return None

        found = await eventually(ask, what="the StatefulSet")
        status = {
            "replicas": found["spec"]["replicas"],
            "observedGeneration": found["metadata"]["generation"],
            "currentRevision": TEMPLATE,
            "updateRevision": TEMPLATE,
        }
        await self._patch(STATEFUL_SETS.path(self.namespace, f"{pool}-{engines}", "status"), {"status": status})

    async def _patch(self, path: str, body: Object) -> Object:
        return await self.api.request("PATCH", path, body=body, content_type=MERGE_PATCH)


@asynccontextmanager
async def make_team(api: KubeApi) -> AsyncIterator[Team]:
    """A fresh namespace; our objects and the pods in it are deleted at the end."""
    namespace = f"team-{uuid.uuid4().hex[:8]}"
    await api.request("POST", NAMESPACES.path(), body={"metadata": {"name": namespace}})
    async with AsyncExitStack() as stack:
        yield Team(api, namespace, stack)
    for kind in (TENANTS, LORA_ADAPTERS, LORA_POOLS, STATEFUL_SETS):
        await api.request("DELETE", kind.path(namespace), timeout_seconds=120)
    await api.request("DELETE", PODS.path(namespace), params={"gracePeriodSeconds": "0"})
