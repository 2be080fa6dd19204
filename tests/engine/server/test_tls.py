"""The three ports over TLS on real sockets, without a model: names, authorities, versions, and pairs that change."""

import asyncio
import itertools
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.names import engine_server_name
from lorafleet_engine.errors import SettingsError
from lorafleet_engine.main import loader_config
from lorafleet_engine.server.engine import Engine
from lorafleet_engine.server.loader_client import LoaderClient
from lorafleet_engine.server.ports import Ports
from lorafleet_engine.server.tls import TlsFolder
from lorafleet_engine.settings import load_settings
from tests.support.authority import Authority, make_authority
from tests.support.engine_process import free_ports

NAME = engine_server_name("ml", "qwen")


@dataclass(frozen=True, slots=True)
class Running:
    engine: Engine
    folder: Path
    authority: Authority
    ports: dict[PortName, int]
    session: aiohttp.ClientSession

    async def get(self, port: PortName, path: str, name: str = NAME, trust: str | None = None) -> int:
        """The status of an answer over a connection of its own."""
        return (await self.ask(port, path, ssl.create_default_context(cadata=trust or self.authority.bundle), name))[0]

    async def ask(self, port: PortName, path: str, context: ssl.SSLContext, name: str = NAME) -> tuple[int, str]:
        url = f"https://127.0.0.1:{self.ports[port]}{path}"
        headers = {"authorization": f"Bearer {port.value}"}
        async with self.session.get(url, headers=headers, ssl=context, server_hostname=name) as response:
            return response.status, await response.text()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    authority, folder = make_authority(tmp_path / "authority"), tmp_path / "tls"
    authority.write_pair(folder, NAME)
    (tmp_path / "tokens").mkdir()
    for name in PortName:
        (tmp_path / "tokens" / name.value).write_text(name.value)
    ports = dict(zip(PortName, free_ports(3), strict=True))
    environment = {f"LORAFLEET_{name.name}_PORT": str(number) for name, number in ports.items()} | {
        "LORAFLEET_BASE_NAME": "none",
        "LORAFLEET_BASE_URI": "pvc://none",
        "LORAFLEET_BIND": "127.0.0.1",
        "LORAFLEET_TOKENS_DIR": str(tmp_path / "tokens"),
        "LORAFLEET_TLS_DIR": str(folder),
    }
    settings = load_settings(environment)
    engine = Engine(settings, LoaderClient(loader_config(settings)))
    assert engine.tls is not None
    engine.tls = TlsFolder(folder, itertools.count().__next__)  # each look is a second later
    listening = Ports(engine, settings.ports)
    serving = asyncio.create_task(listening.serve())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield Running(engine, folder, authority, ports, session)
    listening.stop()
    await serving


async def test_all_three_ports_speak_tls_and_nothing_else(running: Running) -> None:
    assert await running.get(PortName.STATE, "/state") == 200
    assert await running.get(PortName.SERVING, "/nothing") == 404
    assert await running.get(PortName.ADMIN, "/nothing") == 404
    for port in running.ports.values():
        with pytest.raises(aiohttp.ClientError):
            await running.session.get(f"http://127.0.0.1:{port}/livez")


async def test_a_probe_that_names_no_server_and_trusts_anything_is_answered(running: Running) -> None:
    """As the kubelet's does."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", running.ports[PortName.STATE], ssl=ssl._create_unverified_context(), server_hostname=""
    )
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    writer.close()


async def test_another_name_and_another_authority_are_refused_by_who_connects(running: Running, tmp_path: Path) -> None:
    with pytest.raises(aiohttp.ClientConnectorCertificateError, match="Hostname mismatch"):
        await running.get(PortName.STATE, "/livez", name=engine_server_name("ml", "other"))
    stranger = make_authority(tmp_path / "stranger").bundle
    with pytest.raises(aiohttp.ClientConnectorCertificateError, match="verify failed"):
        await running.get(PortName.STATE, "/livez", trust=stranger)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_tls_1_1_is_refused_by_the_engine(running: Running) -> None:
    context = ssl.create_default_context(cadata=running.authority.bundle)
    context.set_ciphers("ALL:@SECLEVEL=0")
    where: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": running.ports[PortName.SERVING],
        "ssl": context,
        "server_hostname": NAME,
    }
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ConnectionResetError):  # by the engine: the client itself would have raised SSLError
        await asyncio.open_connection(**where)
    context.maximum_version = context.minimum_version = ssl.TLSVersion.TLSv1_2
    _, writer = await asyncio.open_connection(**where)
    writer.close()


async def test_a_new_pair_is_taken_while_an_answer_is_on_its_way(running: Running) -> None:
    engine, renamed = running.engine, engine_server_name("ml", "renamed")
    before = engine.tls.state.fingerprint  # type: ignore[union-attr]
    context = ssl.create_default_context(cadata=running.authority.bundle)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", running.ports[PortName.STATE], ssl=context, server_hostname=NAME
    )
    engine.changes.bump()
    target = f"/state?since={engine.changes.seq}&boot={engine.boot_id}&timeout=60"
    head = f"GET {target} HTTP/1.1\r\nhost: engine\r\nauthorization: Bearer state\r\nconnection: close\r\n\r\n"
    writer.write(head.encode())
    running.authority.write_pair(running.folder, renamed)

    assert await running.get(PortName.STATE, "/livez", name=renamed) == 200
    engine.changes.bump()
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 200 OK")
    assert engine.tls.state.fingerprint in answer  # type: ignore[union-attr]
    assert before not in answer, "the state tells of the new one"


async def test_a_broken_pair_leaves_the_one_before_and_is_told(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    (running.folder / "tls.key").write_text("nonsense")
    problem = running.engine.tls.state.problem  # type: ignore[union-attr]
    assert problem is not None
    assert "of no use" in problem
    assert await running.get(PortName.STATE, "/livez") == 200
    status, metrics = await running.ask(
        PortName.STATE, "/metrics", ssl.create_default_context(cadata=running.authority.bundle)
    )
    assert (status, "lorafleet_tls_refused 1.0" in metrics) == (200, True)
    assert [each.levelno for each in caplog.records if "go on with the ones before" in each.message] == [logging.ERROR]


def test_no_pair_at_the_start_ends_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"LORAFLEET_TLS_DIR: no certificate and key"):
        TlsFolder(tmp_path)
