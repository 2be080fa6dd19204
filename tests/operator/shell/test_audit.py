"""The operator's audit lines, and that the engine is told the same request id."""

import logging

import aiohttp
import pytest
from aiohttp import web

from lorafleet_contracts.admin import Display, Problem, ProblemCode, SourceCredentials, SourceSpec, VersionRequest
from lorafleet_kube.logs import JsonLines
from lorafleet_operator.errors import EngineRefusedError, EngineUnreachableError, NotLeadingError
from lorafleet_operator.shell.admin import AdminAddress, EngineAdmin
from lorafleet_operator.shell.audit import Act, audited
from lorafleet_operator.shell.lease import Lease
from lorafleet_operator.shell.trust import Trust
from tests.support.fleet import digest_of

VERSION = ("uid-1", digest_of("a"))
SECRET = "s3cret"


class HeldLease(Lease):
    """A Lease that is held."""

    def __init__(self) -> None:
        super().__init__(None, ("ns", "lease"), "operator-0_1", None)  # type: ignore[arg-type]  # asks nobody

    def check(self) -> None:
        """Nothing is wrong."""


async def test_a_load_has_one_line_with_the_id_that_the_engine_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    heard: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        heard.append({name.lower(): value for name, value in request.headers.items()})
        return web.json_response({}, status=202 if len(heard) == 1 else 201)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.94.7.2", 8002).start()
    source = SourceSpec(uri="https://host/a", credentials=SourceCredentials(token=SECRET))
    request = VersionRequest(source=source, display=Display(namespace="team", name="pirate"))
    try:
        async with aiohttp.ClientSession() as session:
            address = AdminAddress("serving/smol-0", "127.94.7.2", SECRET)
            await EngineAdmin(session, HeldLease(), Trust()).load(address, VERSION, request)
    finally:
        await runner.cleanup()

    (line,) = [each for each in caplog.records if each.name.endswith(".audit")]
    assert {each["x-request-id"] for each in heard} == {line.__dict__["request_id"]}
    assert heard[0]["user-agent"] == "lorafleet-operator/operator-0_1"
    told = {name: line.__dict__[name] for name in ("action", "object", "adapter", "engine", "actor", "outcome", "code")}
    assert told == {
        "action": "load",
        "object": "@".join(VERSION),
        "adapter": "team/pirate",
        "engine": "serving/smol-0",
        "actor": "operator-0_1",
        "outcome": "done",
        "code": "",
    }
    assert SECRET not in JsonLines("operator").format(line)


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (EngineRefusedError(Problem(title="t", status=413, code=ProblemCode.DOES_NOT_FIT)), "refused", "does_not_fit"),
        (EngineUnreachableError("silent"), "unreachable", ""),
        (NotLeadingError("lost"), "not leading", ""),
        (KeyboardInterrupt(), "cut off", ""),
    ],
)
def test_whatever_ends_an_act_is_told(
    caplog: pytest.LogCaptureFixture, error: BaseException, outcome: str, code: str
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(type(error)), audited(Act("unload", "u", "e", "me")):
        raise error
    (line,) = caplog.records
    assert (line.__dict__["outcome"], line.__dict__["code"]) == (outcome, code)
