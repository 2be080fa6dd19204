"""What the benchmark runs against: engines in a process of their own, and a gateway before them."""

import asyncio
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.certificates import Authority, KeyPair
from lorafleet_contracts.admin import Tier
from lorafleet_contracts.names import engine_server_name
from tests.gateway.doubles.engine import run_engine
from tests.gateway.doubles.stack import (
    STATE_TOKEN,
    Stack,
    digest,
    fill,
    free_ports,
    put_adapter,
    put_roots,
    run_gateway,
    until,
)

ENGINES = 4
ADAPTERS = 200
ENGINE_NAME = engine_server_name("serving", "smol")


@dataclass(frozen=True, slots=True)
class Stage:
    """Where requests may go: to the gateway, or straight to the engines' serving ports, which speak TLS.

    `trust` is for those, whose name is ENGINE_NAME. `programs`: pids by name.
    """

    gateway: str
    engines: tuple[str, ...]
    trust: ssl.SSLContext
    programs: dict[str, int]

    def cpu_seconds(self) -> dict[str, float]:
        """What each program of the gateway has used so far, in user and kernel mode."""
        return {name: _cpu_seconds(pid) for name, pid in self.programs.items()}


@asynccontextmanager
async def set_stage() -> AsyncIterator[Stage]:
    """Start engines, picker and Envoy; every engine holds every adapter."""
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority(folder / "authority")
        authority.create()
        pair = authority.issue("engine", "/CN=engine", [f"DNS:{ENGINE_NAME}"])
        doubles = []
        for number in range(ENGINES):
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(pair.certificate, pair.key)
            doubles.append(await exits.enter_async_context(run_engine(f"e{number}", STATE_TOKEN, tls)))
        ports = free_ports(ENGINES)
        exits.callback(_end, _start_engines(pair, ports))
        for double, port in zip(doubles, ports, strict=True):
            double.serving = port  # the double's own serving port stays unused
        stack = await exits.enter_async_context(run_gateway(folder, doubles, _fill))
        put_roots(stack, authority.certificate.read_text())
        await until(lambda: stack.knows(ENGINES))
        for port in ports:
            await until(lambda port=port: _listens(port))  # type: ignore[misc]
        programs = {name: process.pid for name, process in stack.processes.items()}
        trust = ssl.create_default_context(cafile=str(authority.certificate))
        yield Stage(stack.url, tuple(f"https://127.0.0.1:{port}" for port in ports), trust, programs)


def adapter_name(number: int) -> str:
    """What a client calls adapter `number`."""
    return f"adapter-{number}"


def _fill(stack: Stack) -> None:
    fill(stack)
    for number in range(ADAPTERS):
        put_adapter(stack, "acme", adapter_name(number), digest("d"))
    held = {f"uid-{adapter_name(number)}@{digest('d')}": Tier.GPU for number in range(ADAPTERS)}
    for engine in stack.engines:
        engine.show(held)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _cpu_seconds(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")


def _start_engines(pair: KeyPair, ports: list[int]) -> subprocess.Popen[bytes]:
    words = [pair.certificate, pair.key, *ports]
    return subprocess.Popen([sys.executable, "-m", "tests.gateway.bench.engine", *map(str, words)])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
