"""A whole gateway for a test: the real Envoy and the real picker process, doubles of the API server and the engines."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lorafleet_contracts.admin import PortName, Tier
from lorafleet_contracts.keys import KeyName, format_key, key_digest
from lorafleet_contracts.names import ENGINE_CA, ENGINE_CA_KEY, SERVING_TLS_PORT
from lorafleet_contracts.tokens import port_token
from lorafleet_gateway.settings import Settings, read_settings
from lorafleet_gateway.shell.envoy_files import write_bootstrap
from lorafleet_kube.paths import CONFIG_MAPS, ENDPOINT_SLICES, NAMESPACES
from tests.gateway.doubles.engine import EngineDouble, run_engine
from tests.gateway.doubles.kubernetes import (
    ADAPTERS,
    POOLS,
    SYSTEM,
    TENANTS,
    KubernetesDouble,
    run_kubernetes,
)

SERVING_KEY, STATE_KEY = b"serving key", b"state\nkey"
POOL_UID = "uid-smol"
SERVING_TOKEN = port_token(SERVING_KEY, POOL_UID, PortName.SERVING)
STATE_TOKEN = port_token(STATE_KEY, POOL_UID, PortName.STATE)
MAX_BODY = 1 << 19
COLD_SECONDS = 2
REQUEST_SECONDS = 3


def make_key(namespace: str, tenant: str, number: int = 1) -> str:
    """An API key of a tenant."""
    return format_key(KeyName(namespace, tenant, f"k{number}"), bytes([number]) * 32)


def digest(letter: str) -> str:
    """A well-formed digest."""
    return "sha256:" + letter * 64


def find_envoy() -> str:
    """The binary that `make envoy-binary` installs. Skips the test without it."""
    cache = Path(os.environ.get("LORAFLEET_CACHE") or Path.home() / ".cache/lorafleet")
    binary = cache / "envoy/envoy/_bin/envoy"
    if not binary.exists():
        pytest.skip("no Envoy binary: run `make envoy-binary`")
    return str(binary)


@dataclass
class Stack:
    """What a test may touch. `url` is the gateway's address for clients."""

    settings: Settings
    kubernetes: KubernetesDouble
    engines: list[EngineDouble]
    client: aiohttp.ClientSession
    environment: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where clients send their requests."""
        return f"http://127.0.0.1:{self.settings.listen_port}"

    def start_picker(self) -> None:
        """Start the picker process."""
        self.processes["picker"] = subprocess.Popen([sys.executable, "-m", "lorafleet_gateway"], env=self.environment)

    def start_envoy(self) -> None:
        """Start Envoy."""
        command = [find_envoy(), "-c", str(self.settings.config_dir / "bootstrap.json"), "--concurrency", "1"]
        command += ["--log-level", "warning", "--disable-hot-restart", "--drain-time-s", "2"]
        self.processes["envoy"] = subprocess.Popen(command)

    def stop(self, name: str) -> None:
        """Kill a process at once, as a crash would."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop_all(self) -> None:
        """Kill all processes."""
        for name in list(self.processes):
            self.stop(name)

    async def ready(self) -> None:
        """Wait until both halves say that they are ready."""
        health = f"http://127.0.0.1:{self.settings.health_port}/readyz"
        for url in (f"{self.url}/ready", health):
            await until(lambda url=url: self._answers(url, 200), 90)  # type: ignore[misc]

    async def post(self, key: str, body: Any, path: str = "/v1/chat/completions", **options: Any) -> "Reply":
        """Send a request to the gateway."""
        headers = {"authorization": f"Bearer {key}", **options.pop("headers", {})}
        payload = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.client.post(self.url + path, headers=headers, **payload, **options) as response:
            return await _read(response)

    async def get(self, key: str, path: str) -> "Reply":
        """Get a document from the gateway."""
        async with self.client.get(self.url + path, headers={"authorization": f"Bearer {key}"}) as response:
            return await _read(response)

    async def served_by(self, key: str, model: str) -> str:
        """The name of the engine that answers, or the error's code."""
        reply = await self.post(key, {"model": model})
        if reply.status == 200:
            return str(reply.body["choices"][0]["message"]["content"].removeprefix("from "))
        return str(reply.body["error"]["code"])

    async def metric(self, name: str) -> float:
        """A value of the picker's metrics, by name and labels as they are written."""
        async with self.client.get(f"http://127.0.0.1:{self.settings.health_port}/metrics") as response:
            lines = (await response.text()).splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)

    async def knows(self, count: int) -> bool:
        """Whether the picker knows that many engines by their own word."""
        return await self.metric('lorafleet_gateway_replicas{state="known"}') == count

    async def _answers(self, url: str, status: int) -> bool:
        try:
            async with self.client.get(url) as response:
                return response.status == status
        except aiohttp.ClientError:
            return False


@dataclass
class Reply:
    """A status, headers (names in lower case) and a decoded body."""

    status: int
    headers: dict[str, str]
    body: Any


async def _read(response: aiohttp.ClientResponse) -> Reply:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(response.status, headers, await response.json())


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@asynccontextmanager
async def run_stack(folder: Path, engines: int = 2) -> AsyncIterator[Stack]:
    """Start everything and wait until it is ready."""
    async with AsyncExitStack() as exits:
        replicas = [await exits.enter_async_context(run_engine(f"e{n}", STATE_TOKEN)) for n in range(engines)]
        yield await exits.enter_async_context(run_gateway(folder, replicas, fill))


@asynccontextmanager
async def run_gateway(
    folder: Path, replicas: list[EngineDouble], fill_in: Callable[[Stack], None], **settings: str
) -> AsyncIterator[Stack]:
    """Start Envoy and picker before these engines, with the objects that `fill_in` puts; wait until they are ready."""
    find_envoy()
    async with AsyncExitStack() as exits:
        kubernetes = await exits.enter_async_context(run_kubernetes())
        client = await exits.enter_async_context(aiohttp.ClientSession())
        environment = os.environ | _write_environment(folder, kubernetes.url) | settings
        stack = Stack(read_settings(environment), kubernetes, replicas, client, environment)
        exits.callback(stack.stop_all)
        fill_in(stack)
        write_bootstrap(stack.settings)
        stack.start_picker()
        stack.start_envoy()
        await stack.ready()
        yield stack


def fill(stack: Stack) -> None:
    """One pool; acme owns pirate (on all engines) and cold (on none); globex owns butler; acme may not call it."""
    kubernetes = stack.kubernetes
    for namespace in ("serving", "acme", "globex"):
        kubernetes.put(NAMESPACES, {"metadata": {"name": namespace, "labels": {"team": namespace}}})
    kubernetes.put(
        POOLS,
        {
            "metadata": {"namespace": "serving", "name": "smol"},
            "spec": {"baseModel": {"name": "smollm2"}, "allowedNamespaces": {"from": "All"}},
        },
    )
    for number, engine in enumerate(stack.engines):
        put_slice(stack, number)
        engine.show({f"uid-pirate@{digest('a')}": Tier.GPU, f"uid-butler@{digest('b')}": Tier.GPU})
    put_adapter(stack, "acme", "pirate", digest("a"))
    put_adapter(stack, "acme", "cold", None)
    put_adapter(stack, "globex", "butler", digest("b"))
    put_tenant(stack, "acme", base=True)
    put_tenant(stack, "globex", base=False)


def put_slice(stack: Stack, number: int, ready: bool = True, *, tls: bool = False) -> None:
    """Publish the endpoint of one engine; it is said to speak TLS where it does, or with `tls`."""
    engine = stack.engines[number]
    labels = {"lorafleet.io/pool": "smol", "lorafleet.io/set": "shared"}
    ports = [{"name": "serving", "port": engine.serving}, {"name": "state", "port": engine.state_port}]
    if tls or engine.tls is not None:
        ports.append({"name": SERVING_TLS_PORT, "port": engine.serving})
    conditions = {"ready": ready, "serving": ready, "terminating": False}
    stack.kubernetes.put(
        ENDPOINT_SLICES,
        {
            "metadata": {"namespace": "serving", "name": f"slice-{number}", "labels": labels},
            "ports": ports,
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": conditions}],
        },
    )


def put_roots(stack: Stack, pem: str) -> None:
    """Publish who signs for engines, as the operator does."""
    stack.kubernetes.put(
        CONFIG_MAPS, {"metadata": {"namespace": SYSTEM, "name": ENGINE_CA}, "data": {ENGINE_CA_KEY: pem}}
    )


def put_adapter(stack: Stack, namespace: str, name: str, version: str | None) -> None:
    """Create or change an adapter of pool smol."""
    stack.kubernetes.put(
        ADAPTERS,
        {
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"poolRef": {"name": "smol", "namespace": "serving"}, "source": {"uri": "http://x/"}},
            "status": {"digest": version} if version else {},
        },
    )


def put_tenant(stack: Stack, namespace: str, base: bool, **fields: Any) -> None:
    """Create a tenant that may call all adapters of its namespace; key 2 has expired. `fields` go into its spec."""
    keys = [{"id": f"k{n}", "sha256": key_digest(make_key(namespace, "t", n))} for n in (1, 2)]
    keys[1]["expiresAt"] = "2026-01-02T00:00:00Z"
    stack.kubernetes.put(
        TENANTS,
        {
            "metadata": {"namespace": namespace, "name": "t"},
            "spec": {
                "poolRef": {"name": "smol", "namespace": "serving"},
                "adapters": {"selector": {}, "base": base},
                "apiKeys": keys,
                **fields,
            },
        },
    )


def _write_environment(folder: Path, api_server: str) -> dict[str, str]:
    keys = folder / "keys"
    keys.mkdir(parents=True)
    (keys / "serving").write_bytes(SERVING_KEY)
    (keys / "state").write_bytes(STATE_KEY)
    kubeconfig = folder / "kubeconfig"
    config = {
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": SYSTEM}}],
        "clusters": [{"name": "c", "cluster": {"server": api_server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "c", **config}))
    listen, picker, log, health, admin = free_ports(5)
    return {
        "KUBECONFIG": str(kubeconfig),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LORAFLEET_GATEWAY_NAME": "gateway-1",
        "LORAFLEET_CONFIG_DIR": str(folder / "envoy"),
        "LORAFLEET_KEYS_DIR": str(keys),
        "LORAFLEET_LISTEN_HOST": "127.0.0.1",
        "LORAFLEET_LISTEN_PORT": str(listen),
        "LORAFLEET_PICKER_PORT": str(picker),
        "LORAFLEET_LOG_PORT": str(log),
        "LORAFLEET_HEALTH_HOST": "127.0.0.1",
        "LORAFLEET_HEALTH_PORT": str(health),
        "LORAFLEET_ENVOY_ADMIN_PORT": str(admin),
        "LORAFLEET_MAX_BODY_BYTES": str(MAX_BODY),
        "LORAFLEET_REQUEST_SECONDS": str(REQUEST_SECONDS),
        "LORAFLEET_ENVOY_MEMORY_BYTES": str(512 << 20),
        "LORAFLEET_COLD_SECONDS": str(COLD_SECONDS),
    }


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
