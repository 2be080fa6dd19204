"""`lorafleet ports rotate` against engines that follow the Secret as slowly as the test likes."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.tokens import TOKEN_USED_METRIC, port_token, token_mark, token_matches
from lorafleet_kube.access import load_access
from lorafleet_kube.api import connect
from lorafleet_operator.cli.ports import Terms, UnfinishedError, register, rotate_ports
from lorafleet_operator.shell.credentials import NEXT, PREVIOUS, PortKeys, read_port_keys
from tests.support.commands import custom, run_command
from tests.support.fake_api import FakeApi, run_in_thread

PATH = "/api/v1/namespaces/lorafleet-system/secrets/lorafleet-port-keys"
UID = "uid-demo-smol"
OLD = {port.value: f"old {port.value}".encode() for port in PortName}
FAST = Terms("lorafleet-system", quiet=0.0, patience=5.0)
HASTY = Terms("lorafleet-system", quiet=0.0, patience=0.0)


@dataclass
class FollowingEngine:
    """Accepts what the Secret says. `deaf`: what it said at the start; `late`: looks at which an old token is used."""

    api: FakeApi
    deaf: bool = False
    late: int = 0
    uses: list[list[str]] = field(default_factory=list)

    async def metrics(self, request: web.Request) -> web.Response:
        """The series of its tokens, for who knows the state port's."""
        keys = PortKeys(OLD) if self.deaf else keys_of(self.api)
        tokens = keys.tokens_for(UID).by_port
        scheme, _, token = request.headers["authorization"].partition(" ")
        if scheme != "Bearer" or not token_matches(token, list(tokens["state"])):
            return web.Response(status=401)
        old = {port_token(OLD[port.value], UID, port) for port in PortName}
        self.late -= PREVIOUS in "".join(keys.by_entry)
        lines = [
            f'{TOKEN_USED_METRIC}{{port="{port}",token="{token_mark(each)}"}} '
            f"{1.7e9 + (max(self.late, 0) if each in old else 0)}"
            for port, accepted in tokens.items()
            for each in accepted
        ]
        self.uses.append(sorted(keys.by_entry))
        return web.Response(text="\n".join(["# HELP other", "other 1", *lines]))


def keys_of(api: FakeApi) -> PortKeys:
    return read_port_keys(api.objects[PATH])


def put_keys(api: FakeApi, **entries: bytes) -> None:
    data = {name: base64.b64encode(key).decode() for name, key in entries.items()}
    meta = {"namespace": "lorafleet-system", "name": "lorafleet-port-keys", "resourceVersion": "7"}
    api.add("secrets", {"metadata": meta, "data": data}, group="/api/v1")


@pytest.fixture
def engine(fake_api: FakeApi) -> Iterator[FollowingEngine]:
    """The engine of the one ready pod; another pod is not ready and answers nothing."""
    put_keys(fake_api, **OLD)
    fake_api.add("lorapools", custom("LoraPool", "smol"))
    for name, ready in (("smol-shared-0", "True"), ("smol-shared-1", "False")):
        meta = {"name": name, "namespace": "demo", "labels": {"lorafleet.io/pool": "smol"}}
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        fake_api.add("pods", {"metadata": meta, "status": status}, group="/api/v1")
    found = FollowingEngine(fake_api)
    app = web.Application()
    app.router.add_get("/metrics", found.metrics)
    with run_in_thread(app) as port:
        fake_api.ports = {"smol-shared-0": port}
        yield found


async def rotate(terms: Terms) -> list[str]:
    told: list[str] = []
    async with connect(await load_access()) as api:
        await rotate_ports(api, terms, told.append)
    return told


async def test_new_keys_are_accepted_before_they_are_used_and_the_old_go_last(engine: FollowingEngine) -> None:
    told = await rotate(FAST)

    assert [line[:3] for line in told] == ["1/4", "2/4", "3/4", "4/4"]
    keys = keys_of(engine.api).by_entry
    assert keys.keys() == OLD.keys()
    assert not set(keys.values()) & set(OLD.values())
    stages = [tuple(each) for index, each in enumerate(engine.uses) if index == 0 or each != engine.uses[index - 1]]
    ports = sorted(OLD)
    assert stages == [
        tuple(sorted([*ports, *(port + NEXT for port in ports)])),
        tuple(sorted([*ports, *(port + PREVIOUS for port in ports)])),
        tuple(ports),
    ]


async def test_an_engine_that_has_not_heard_keeps_the_old_keys_in_use(engine: FollowingEngine) -> None:
    engine.deaf = True
    with pytest.raises(UnfinishedError, match=r"demo/smol-shared-0\. .*run the command again"):
        await rotate(HASTY)
    keys = keys_of(engine.api).by_entry
    assert {port: keys[port] for port in OLD} == OLD
    new = {port: keys[port + NEXT] for port in OLD}

    engine.deaf = False
    await rotate(FAST)
    assert keys_of(engine.api).by_entry == new, "it goes on with the keys that it had made"


async def test_an_old_token_that_is_used_keeps_the_old_keys_accepted(engine: FollowingEngine) -> None:
    engine.late = 100
    with pytest.raises(UnfinishedError, match="an old token was used of late"):
        await rotate(Terms("lorafleet-system", quiet=60.0, patience=1.0))
    keys = keys_of(engine.api).by_entry
    assert {port: keys[port + PREVIOUS] for port in OLD} == OLD

    engine.late = 0
    assert [line[:3] for line in await rotate(FAST)] == ["2/4", "3/4", "4/4"]
    assert keys_of(engine.api).by_entry == {port: keys[port] for port in OLD}


def test_what_is_missing_and_what_is_too_short_is_told(fake_api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(register, "ports", "rotate") == 1
    assert "there is no Secret lorafleet-system/lorafleet-port-keys" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run_command(register, "ports", "rotate", "--quiet", "5s")
    assert "less than 15s" in capsys.readouterr().err
