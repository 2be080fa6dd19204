"""TLS to engines: who signs for them is verified and that they are of the right pool, and none of it stops requests."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.cluster.certificates import Authority
from lorafleet_contracts.names import engine_server_name
from tests.gateway.doubles.engine import EngineDouble, run_engine
from tests.gateway.doubles.stack import STATE_TOKEN, Stack, fill, make_key, put_roots, put_slice, run_gateway, until

pytestmark = pytest.mark.envoy

ACME = make_key("acme", "t")
CHAT = {"model": "pirate", "messages": [{"role": "user", "content": "hi"}]}
OWN = engine_server_name("serving", "smol")
FOREIGN = engine_server_name("serving", "other")


class Signer:
    """An authority for engines, and what its certificates are served with."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)
        self._authority.create()

    @property
    def root(self) -> str:
        """What trusts it, in PEM."""
        return self._authority.certificate.read_text()

    def serve(self, context: ssl.SSLContext, name: str) -> ssl.SSLContext:
        """Have a server show a new certificate for `name` from now on."""
        pair = self._authority.issue("engine", "/CN=engine", [f"DNS:{name}"])
        context.load_cert_chain(pair.certificate, pair.key)
        return context


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Signer, Signer]:
    one, two = (Signer(tmp_path_factory.mktemp("signer")) for _ in range(2))
    return one, two


def speak(signer: Signer, name: str = OWN) -> ssl.SSLContext:
    """TLS as a server, in this name."""
    return signer.serve(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), name)


async def run(exits: AsyncExitStack, folder: Path, *speaks: ssl.SSLContext | None) -> Stack:
    """A gateway before engines that speak so; nobody is trusted yet."""
    engines = [
        await exits.enter_async_context(run_engine(f"e{number}", STATE_TOKEN, tls)) for number, tls in enumerate(speaks)
    ]
    return await exits.enter_async_context(run_gateway(folder, engines, fill))


@pytest_asyncio.fixture
async def exits() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def answered(stack: Stack, headers: dict[str, str] | None = None) -> str:
    """Which engine answers, or the error's code."""
    reply = await stack.post(ACME, CHAT, headers=headers or {})
    if reply.status == 200:
        return str(reply.body["choices"][0]["message"]["content"].removeprefix("from "))
    return str(reply.body["error"]["code"])


async def test_engines_are_reached_once_it_is_known_who_signs_for_them(
    exits: AsyncExitStack, tmp_path: Path, signers: tuple[Signer, Signer]
) -> None:
    first, second = signers
    speaks = speak(first)
    stack = await run(exits, tmp_path, speaks)
    assert await answered(stack) == "model_unavailable", "the gateway is there before the roots are"
    put_roots(stack, first.root)
    await until(lambda: stack.knows(1), 10)
    assert await answered(stack) == "e0"
    spoofed = {"x-lorafleet-server-name": FOREIGN, "x-envoy-auto-sni": FOREIGN, "host": FOREIGN}
    assert await answered(stack, spoofed) == "e0"
    (engine,) = stack.engines
    assert set(engine.names) == {OWN}, "nothing that a client says changes whom Envoy asks for"

    # A new signer: first both are trusted, then engines show its certificates, then the old one goes.
    put_roots(stack, first.root + second.root)
    second.serve(speaks, OWN)
    await until(lambda: _anew(stack), 20)
    put_roots(stack, second.root)
    await until(lambda: _anew(stack), 20)


async def _anew(stack: Stack) -> bool:
    """Whether Envoy gets through over a new connection, and the picker too."""
    (engine,) = stack.engines
    engine.names.clear()
    engine.drop(engine.serving)
    engine.drop(engine.state_port)
    answer = await answered(stack)
    await until(lambda: _asked(engine, 2), 10)
    return answer == "e0" and await stack.knows(1)


async def _refuses(stack: Stack) -> bool:
    return await answered(stack) == "model_unavailable"


async def _asked(engine: EngineDouble, times: int) -> bool:
    return len(engine.names) >= times


async def test_who_is_of_another_pool_gets_no_request_and_the_next_host_does(
    exits: AsyncExitStack, tmp_path: Path, signers: tuple[Signer, Signer]
) -> None:
    signer, _ = signers
    speaks = speak(signer)
    stack = await run(exits, tmp_path, speaks, speak(signer), None)
    impostor, honest, plain = stack.engines
    put_roots(stack, signer.root)
    await until(lambda: stack.knows(3), 10)
    assert {await answered(stack) for _ in range(9)} == {"e0", "e1", "e2"}, "one that is not marked speaks plain HTTP"

    signer.serve(speaks, FOREIGN)
    impostor.drop(impostor.serving)  # the picker's connection stays, so that it is still picked
    impostor.names.clear()
    impostor.arrivals.clear()
    assert {await answered(stack) for _ in range(9)} == {"e1", "e2"}
    assert impostor.names, "it was connected to"
    assert not impostor.arrivals

    await honest.die()
    put_slice(stack, 2, tls=True)
    await until(lambda: _refuses(stack), 10)
    reply = await stack.post(ACME, CHAT)
    assert (reply.status, reply.body["error"]["code"]) == (503, "model_unavailable")
    plain.arrivals.clear()
    assert {await answered(stack) for _ in range(4)} == {"model_unavailable"}
    assert not plain.arrivals, "nobody who is to speak TLS is asked without"
    impostor.drop(impostor.state_port)
    await until(lambda: stack.knows(0), 10)
