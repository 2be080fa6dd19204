"""An engine's ports behind TLS, as `bench serve` asks them."""

import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from lorafleet_contracts.admin import BaseState, EngineState
from lorafleet_engine.bench.endpoint.control import ControlError, Port, Residency
from tests.support.authority import make_authority
from tests.support.fake_api import run_in_thread

NAME = "qwen.ml.engines.lorafleet"
STATE = EngineState(
    boot_id="b", seq=1, full=True, ready=True, draining=False, base=BaseState(name="qwen")
).model_dump_json(by_alias=True)


async def answer(request: web.Request) -> web.Response:
    return web.Response(text=STATE, content_type="application/json")


async def test_an_engine_with_tls_must_have_the_right_name(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "authority")
    authority.write_pair(tmp_path / "tls", NAME)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "tls" / "tls.crt", tmp_path / "tls" / "tls.key")
    app = web.Application()
    app.router.add_get("/state", answer)
    trust = ssl.create_default_context(cadata=authority.bundle)
    with run_in_thread(app, tls=served) as number:
        async with aiohttp.ClientSession() as session:
            right = Residency(session, Port(f"https://127.0.0.1:{number}", "t", trust, NAME))
            assert (await right.refresh()).base.name == "qwen"
            wrong = Residency(session, Port(f"https://127.0.0.1:{number}", "t", trust, "other.ml.engines.lorafleet"))
            with pytest.raises(ControlError, match="Hostname mismatch"):
                await wrong.refresh()
