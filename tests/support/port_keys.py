"""The Secret with the port keys on the fake API server, and an engine that follows it. Called by tests of rotations."""

import base64
from dataclasses import dataclass, field

from aiohttp import web

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.tokens import TOKEN_USED_METRIC, port_token, token_mark, token_matches
from lorafleet_operator.core.port_keys import NEXT, PREVIOUS, EngineUses, PortKeys
from lorafleet_operator.shell.credentials import read_port_keys
from tests.support.fake_api import FakeApi

PATH = "/api/v1/namespaces/lorafleet-system/secrets/lorafleet-port-keys"
UID = "uid-demo-smol"
OLD = {port.value: f"old {port.value}".encode() for port in PortName}


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

    async def tell(self, keys: PortKeys) -> list[EngineUses]:
        """What it says of its tokens, as an operator hears it: it accepts what the Secret says."""
        accepted = keys_of(self.api)
        marks = set().union(*(accepted.marks(UID, suffix) for suffix in ("", NEXT, PREVIOUS)))
        return [EngineUses("demo/smol-shared-0", UID, dict.fromkeys(marks, 0.0))]


def keys_of(api: FakeApi) -> PortKeys:
    """What the Secret has now."""
    return read_port_keys(api.objects[PATH])


def put_keys(api: FakeApi, created: str = "2026-11-30T10:00:00Z") -> None:
    """The Secret with the old keys, as made at `created`."""
    data = {name: base64.b64encode(key).decode() for name, key in OLD.items()}
    meta = {"namespace": "lorafleet-system", "name": "lorafleet-port-keys", "uid": "uid-keys", "resourceVersion": "7"}
    api.add("secrets", {"metadata": meta | {"creationTimestamp": created}, "data": data}, group="/api/v1")
