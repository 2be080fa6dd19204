"""`lorafleet top` through port forwarding to engines' state ports."""

import base64
import io
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from lorafleet_contracts.admin import BaseState, EngineState, MemoryState, Tier, UsageState, VersionPhase, VersionState
from lorafleet_contracts.names import engine_server_name
from lorafleet_operator.cli.rates import Look, measure
from lorafleet_operator.cli.top import register
from lorafleet_operator.core.authority import term_of
from lorafleet_operator.shell.certificates import Holder, issue, make_authority, read_authority
from tests.support.commands import custom, run_command
from tests.support.fake_api import FakeApi, run_in_thread
from tests.support.fleet import digest_of
from tests.support.handshake import server_context

TOKEN = "s3cret"
DIGEST = digest_of("pirate")


def state(requests: int, boot: str = "b1") -> EngineState:
    """An engine that has answered so many requests of 10 + 20 tokens."""
    return EngineState(
        boot_id=boot,
        seq=requests,
        full=True,
        ready=True,
        draining=False,
        base=BaseState(name="b"),
        memory=MemoryState(
            total=100, weights=10, activations=5, adapters=40, adapters_used=10, kv=45, kv_tokens=64, kv_tokens_used=16
        ),
        versions=[
            VersionState(
                uid="u1", digest=DIGEST, tier=Tier.GPU, phase=VersionPhase.RESIDENT, bytes=10, in_flight=3,
                display={"namespace": "demo", "name": "pirate"},
            )
        ],
        in_flight=3,
        queue=1,
        usage=[
            UsageState(
                tenant="demo/acme", adapter=f"u1@{DIGEST}", gateway="g", requests=requests,
                prompt_tokens=10 * requests, completion_tokens=20 * requests,
            )
        ],
    )  # fmt: skip


def state_port() -> web.Application:
    """A state port that counts 5 requests more at each look."""
    looks = iter(range(0, 10_000, 5))

    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.json_response({}, status=401)
        return web.Response(text=state(next(looks)).model_dump_json(by_alias=True), content_type="application/json")

    app = web.Application()
    app.router.add_get("/state", answer)
    return app


@pytest.fixture
def engine() -> Iterator[int]:
    """An engine of a release without TLS."""
    with run_in_thread(state_port()) as port:
        yield port


@pytest.fixture
def fleet(fake_api: FakeApi, engine: int) -> FakeApi:
    fake_api.add("lorapools", custom("LoraPool", "smol"))
    secret = {
        "metadata": {"name": "smol-tokens", "namespace": "demo"},
        "data": {"state": base64.b64encode(f"{TOKEN}\nold\n".encode()).decode()},
    }
    fake_api.add("secrets", secret, group="/api/v1")
    for name, pool in (("smol-shared-0", "smol"), ("smol-shared-1", "smol"), ("other-shared-0", "other")):
        pod = {"metadata": {"name": name, "namespace": "demo", "labels": {"lorafleet.io/pool": pool}}}
        fake_api.add("pods", pod, group="/api/v1")
    fake_api.ports = {"smol-shared-0": engine}
    return fake_api


def test_rates_by_replica_adapter_and_tenant(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "top", "--interval", "0.2", "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    first, second = told["replicas"]
    assert first["requests_per_s"] == pytest.approx(5 / told["seconds"], rel=0.02)
    assert (first["in_flight"], first["queue"]) == (3, 1)
    assert first["adapter_bytes"] == {"used": 10, "budget": 40}
    assert second == {"replica": "smol-shared-1", "state": "no answer"}  # nothing listens there
    (adapter,) = told["adapters"]
    assert adapter["adapter"] == "demo/pirate"
    assert adapter["tokens_per_s"] == pytest.approx(150 / told["seconds"], rel=0.02)
    assert told["tenants"][0]["tenant"] == "demo/acme"


def test_a_table_where_there_is_no_terminal(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "top", "smol", "--interval", "0.1") == 0
    printed = capsys.readouterr().out
    assert "smol-shared-0" in printed
    assert "25%" in printed
    assert "demo/pirate" in printed


class Terminal(io.StringIO):
    """Somebody who looks at two tables and then presses Ctrl-C."""

    looks = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        before, self.looks = self.looks, self.looks + text.count("demo/pirate")
        if before < 2 <= self.looks:
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C ends what runs, though a shell starts background jobs with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_terminal_is_kept_up_to_date_until_its_user_ends_it(fleet: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert run_command(register, "top", "--interval", "0.1") == 0
    assert terminal.looks >= 2
    assert "smol-shared-0" in terminal.getvalue()


def test_what_is_missing_is_told(fleet: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "top", "absent") == 1
    assert "there is no LoraPool demo/absent" in capsys.readouterr().err
    fleet.forbidden = ("/api/v1/namespaces/demo/secrets",)
    assert run_command(register, "top") == 1
    assert "403 Forbidden" in capsys.readouterr().err
    fleet.add("lorapools", custom("LoraPool", "second"))
    assert run_command(register, "top") == 1
    assert "namespace demo has 2 LoraPools (smol, second); name one" in capsys.readouterr().err


def test_a_restarted_engine_has_no_rates_yet() -> None:
    told = measure(Look(0.0, {"r": state(100)}), Look(2.0, {"r": state(3, boot="b2")}))
    assert told["replicas"][0]["requests_per_s"] == 0.0
    assert told["tenants"] == []
    told = measure(Look(0.0, {"r": state(100)}), Look(2.0, {"r": state(110)}))
    assert told["replicas"][0]["requests_per_s"] == 5.0
    assert told["adapters"][0]["tokens_per_s"] == 150.0


def test_an_engine_with_tls_is_believed_only_when_it_is_of_the_pool(
    fleet: FakeApi, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    now = time.time()
    authority = read_authority(*(each.encode() for each in make_authority(now)))
    secret = fleet.objects["/api/v1/namespaces/demo/secrets/smol-tokens"]
    secret["data"]["ca.crt"] = base64.b64encode(authority.root.pem.encode()).decode()
    fleet.objects["/api/v1/namespaces/demo/pods/smol-shared-0"]["metadata"]["labels"]["lorafleet.io/tls"] = "true"
    for pool, answers in (("smol", True), ("other", False)):
        holder = Holder(f"pool/{pool}", (engine_server_name("demo", pool),))
        issued = issue(authority, holder, term_of(authority.root, holder.identity, now))
        with run_in_thread(state_port(), tls=server_context(issued.chain, issued.key, tmp_path)) as port:
            fleet.ports = {"smol-shared-0": port}
            assert run_command(register, "top", "smol", "--interval", "0.1", "-o", "json") == 0
        told = json.loads(capsys.readouterr().out)["replicas"][0]
        assert ("requests_per_s" in told) is answers
