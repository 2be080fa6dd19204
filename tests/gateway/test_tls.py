"""TLS to clients from a mounted Secret: HTTP/1.1 and HTTP/2, and certificates that change while requests run."""

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import openai
import pytest
import pytest_asyncio

from e2e.cluster.certificates import Authority
from tests.gateway.doubles.engine import run_engine
from tests.gateway.doubles.stack import STATE_TOKEN, Stack, fill, free_ports, make_key, run_gateway, until

pytestmark = pytest.mark.envoy

ACME = make_key("acme", "t")
HEADERS = {"authorization": f"Bearer {ACME}"}
CHAT = {"model": "pirate", "messages": [{"role": "user", "content": "hi"}]}


class Mount:
    """A Secret as the kubelet mounts it: files are links through `..data`, which moves to a new folder at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tls"
        self.folder.mkdir()
        self._authority = Authority(folder / "authority")
        self._authority.create()
        self._turn = 0
        for name in ("tls.crt", "tls.key"):
            (self.folder / name).symlink_to(f"..data/{name}")

    def trust(self) -> ssl.SSLContext:
        """What a client trusts."""
        return ssl.create_default_context(cafile=str(self._authority.certificate))

    def put(self, name: str) -> None:
        """Mount a certificate whose subject is `name`."""
        pair = self._authority.issue(name, f"/CN={name}", ["IP:127.0.0.1"])
        self._move(pair.certificate.read_bytes(), pair.key.read_bytes())

    def put_nonsense(self) -> None:
        """Mount something that is no certificate."""
        self._move(b"no certificate", b"no key")

    def _move(self, certificate: bytes, key: bytes) -> None:
        self._turn += 1
        version = self.folder / f"..{self._turn}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate)
        (version / "tls.key").write_bytes(key)
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        os.replace(link, self.folder / "..data")
        if self._turn > 1:
            shutil.rmtree(self.folder / f"..{self._turn - 1}")


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    made = Mount(tmp_path)
    made.put("first")
    return made


@pytest_asyncio.fixture
async def stack(tmp_path: Path, mount: Mount) -> AsyncIterator[Stack]:
    (port,) = free_ports(1)
    settings = {"LORAFLEET_TLS_DIR": str(mount.folder), "LORAFLEET_TLS_PORT": str(port)}
    async with run_engine("e0", STATE_TOKEN) as engine, run_gateway(tmp_path, [engine], fill, **settings) as running:
        await until(lambda: running.knows(1))
        yield running


def url(stack: Stack) -> str:
    return f"https://127.0.0.1:{stack.settings.tls_port}/v1"


async def subject(stack: Stack, mount: Mount) -> str:
    """The subject of the certificate that a new connection gets."""
    _, writer = await asyncio.open_connection("127.0.0.1", stack.settings.tls_port, ssl=mount.trust())
    try:
        return str(writer.get_extra_info("peercert")["subject"][0][0][1])
    finally:
        writer.close()


async def shows(stack: Stack, mount: Mount, name: str) -> bool:
    return await subject(stack, mount) == name


async def test_a_new_certificate_is_taken_and_no_running_stream_ends(stack: Stack, mount: Mount) -> None:
    (engine,) = stack.engines
    engine.gate.clear()
    connector = aiohttp.TCPConnector(ssl=mount.trust(), limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, headers=HEADERS) as http,
        http.post(f"{url(stack)}/chat/completions", json={**CHAT, "stream": True}) as response,
    ):
        assert b"one" in await response.content.readuntil(b"\n\n")
        for name in ("second", "third"):
            mount.put(name)
            await until(lambda name=name: shows(stack, mount, name), 5)  # type: ignore[misc]
        engine.gate.set()
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_no_request_fails_while_certificates_change(stack: Stack, mount: Mount) -> None:
    statuses: list[int] = []
    stop = asyncio.Event()

    async def ask(http: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            async with http.post(f"{url(stack)}/chat/completions", json=CHAT) as response:
                statuses.append(response.status)

    new_each_time = aiohttp.TCPConnector(ssl=mount.trust(), force_close=True)
    kept = aiohttp.TCPConnector(ssl=mount.trust())
    async with (
        aiohttp.ClientSession(connector=new_each_time, headers=HEADERS) as one,
        aiohttp.ClientSession(connector=kept, headers=HEADERS) as other,
    ):
        asking = [asyncio.create_task(ask(http)) for http in (one, other)]
        for turn in range(4):
            await asyncio.sleep(0.2)
            mount.put(f"turn-{turn}")
            await until(lambda turn=turn: shows(stack, mount, f"turn-{turn}"), 5)  # type: ignore[misc]
        stop.set()
        await asyncio.gather(*asking)
    assert len(statuses) > 10
    assert set(statuses) == {200}


async def test_a_certificate_that_cannot_be_used_leaves_the_old_one(stack: Stack, mount: Mount) -> None:
    mount.put_nonsense()
    await asyncio.sleep(1)
    assert await shows(stack, mount, "first")
    mount.put("repaired")
    await until(lambda: shows(stack, mount, "repaired"), 5)


async def test_clients_speak_http2_and_http1(stack: Stack, mount: Mount) -> None:
    for offered in ("h2", "http/1.1"):
        context = mount.trust()
        context.set_alpn_protocols([offered])
        _, writer = await asyncio.open_connection("127.0.0.1", stack.settings.tls_port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == offered
        writer.close()
    http = openai.DefaultAsyncHttpxClient(verify=mount.trust())
    async with openai.AsyncOpenAI(base_url=url(stack), api_key=ACME, max_retries=0, http_client=http) as client:
        answer = await client.chat.completions.create(model="pirate", messages=[{"role": "user", "content": "hi"}])
        assert answer.choices[0].message.content == "from e0"


async def test_the_plain_port_answers_probes_only(stack: Stack) -> None:
    async with stack.client.get(f"{stack.url}/ready") as response:
        assert response.status == 200
    refused = await stack.post(ACME, CHAT)
    assert (refused.status, refused.body["error"]["code"]) == (400, "tls_required")
    assert f"port {stack.settings.tls_port}" in refused.body["error"]["message"]
    assert not stack.engines[0].arrivals
