"""The whole rotation of port credentials under traffic: real gateway, real engine, real command.

What the operator and the kubelets do, carrying keys and tokens to where they are read, is done by a task of the test.
"""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.tokens import port_token
from lorafleet_kube.access import load_access
from lorafleet_kube.api import connect
from lorafleet_kube.paths import ENDPOINT_SLICES, NAMESPACES
from lorafleet_operator.cli.ports import Terms, rotate_ports
from lorafleet_operator.core.port_keys import PortKeys
from lorafleet_operator.shell.credentials import read_port_keys
from tests.gateway.doubles.kubernetes import POOLS
from tests.gateway.doubles.stack import (
    POOL_UID,
    SERVING_KEY,
    STATE_KEY,
    Stack,
    make_key,
    put_tenant,
    run_gateway,
    until,
)
from tests.support.commands import custom
from tests.support.engine_process import Engine, running_engine, wait_ready
from tests.support.fake_api import FakeApi, run_fake_api
from tests.support.tiny_model import make_model

PATH = "/api/v1/namespaces/lorafleet-system/secrets/lorafleet-port-keys"
KEYS = {"serving": SERVING_KEY, "state": STATE_KEY, "admin": b"admin key"}
MOUNT_SECONDS = 0.5
QUIET_SECONDS = 6.0
"""More than the gateway's longest pause between two questions at the state port."""
ASKING = 2

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(300)]


def put_cluster(fake: FakeApi, engine: Engine) -> None:
    """What the command finds: keys, the pool, its one ready pod."""
    data = {name: base64.b64encode(key).decode() for name, key in KEYS.items()}
    meta = {"namespace": "lorafleet-system", "name": "lorafleet-port-keys", "uid": "uid-keys"}
    fake.add("secrets", {"metadata": meta, "data": data}, group="/api/v1")
    pool = custom("LoraPool", "smol", "serving")
    pool["metadata"]["uid"] = POOL_UID
    fake.add("lorapools", pool)
    labels = {"lorafleet.io/pool": "smol"}
    pod = {"metadata": {"namespace": "serving", "name": "smol-0", "labels": labels}}
    fake.add("pods", pod | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, group="/api/v1")
    fake.ports = {"smol-0": int(engine.state.rpartition(":")[2])}


def put_fleet(stack: Stack, engine: Engine) -> None:
    """What the gateway finds."""
    for namespace in ("serving", "acme"):
        stack.kubernetes.put(NAMESPACES, {"metadata": {"name": namespace}})
    spec = {"baseModel": {"name": "tiny"}, "allowedNamespaces": {"from": "All"}}
    stack.kubernetes.put(POOLS, {"metadata": {"namespace": "serving", "name": "smol"}, "spec": spec})
    put_tenant(stack, "acme", base=True)
    labels = {"lorafleet.io/pool": "smol", "lorafleet.io/set": "shared"}
    numbers = {"serving": engine.serving, "state": engine.state}
    ports = [{"name": name, "port": int(url.rpartition(":")[2])} for name, url in numbers.items()]
    ready = {"ready": True, "serving": True, "terminating": False}
    meta = {"namespace": "serving", "name": "slice-0", "labels": labels}
    endpoints = [{"addresses": ["127.0.0.1"], "conditions": ready}]
    stack.kubernetes.put(ENDPOINT_SLICES, {"metadata": meta, "ports": ports, "endpoints": endpoints})


def mount(folder: Path, files: dict[str, str]) -> None:
    """Change files as a kubelet does: each at once."""
    for name, text in files.items():
        (folder / f".{name}").write_text(text)
        (folder / f".{name}").replace(folder / name)


def mount_tokens(engine: Engine, keys: PortKeys) -> None:
    """What the operator puts into the pool's Secret."""
    assert engine.folder is not None
    mount(engine.folder / "tokens", {port: "\n".join(all_) for port, all_ in keys.tokens_for(POOL_UID).by_port.items()})


@asynccontextmanager
async def following(fake: FakeApi, stack: Stack, engine: Engine) -> AsyncIterator[None]:
    """Carry what the Secret says to the gateway, and later to the engine."""

    async def follow() -> None:
        while True:
            keys = read_port_keys(fake.objects[PATH])
            by_port = {port: keys.by_entry[port].decode() for port in ("serving", "state")}
            mount(stack.settings.keys_dir, by_port)
            await asyncio.sleep(MOUNT_SECONDS)
            mount_tokens(engine, keys)

    task = asyncio.create_task(follow())
    yield
    task.cancel()


@asynccontextmanager
async def asking(stack: Stack) -> AsyncIterator[list[int]]:
    """Clients that ask one question after the other; gives the status of every answer."""
    seen: list[int] = []

    async def ask() -> None:
        while True:
            body = {"model": "tiny", "messages": [{"role": "user", "content": "sea"}], "max_tokens": 2}
            seen.append((await stack.post(make_key("acme", "t"), body)).status)

    tasks = [asyncio.create_task(ask()) for _ in range(ASKING)]
    yield seen
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def status(client: aiohttp.ClientSession, url: str, port: PortName, keys: PortKeys) -> int:
    token = port_token(keys.by_entry[port.value], POOL_UID, port)
    async with client.get(url, headers={"authorization": f"Bearer {token}"}) as answer:
        return answer.status


async def test_all_three_ports_get_new_credentials_and_no_request_fails(tmp_path: Path) -> None:
    make_model(tmp_path / "volumes" / "models" / "tiny")
    old = PortKeys(KEYS)
    with running_engine(tmp_path, "pvc://models/tiny") as engine, run_fake_api(tmp_path) as fake:
        mount_tokens(engine, old)
        put_cluster(fake, engine)
        wait_ready(engine)
        async with run_gateway(tmp_path / "gateway", [], lambda stack: put_fleet(stack, engine)) as stack:
            await until(lambda: stack.knows(1))
            async with following(fake, stack, engine), asking(stack) as seen:
                async with connect(await load_access(str(fake.kubeconfig))) as api:
                    await rotate_ports(api, Terms("lorafleet-system", QUIET_SECONDS, 60.0), print)
                answered = len(seen)
                await until(lambda: _more(seen, answered))

            new = read_port_keys(fake.objects[PATH])
            assert set(seen) == {200}, "no request failed"
            for port, url in zip(PortName, (engine.serving, engine.state, engine.admin), strict=True):
                assert await status(stack.client, url, port, old) == 401, port
                assert await status(stack.client, url, port, new) == 404, port  # let in, and nothing is there


async def _more(seen: list[int], than: int) -> bool:
    return len(seen) > than + ASKING
