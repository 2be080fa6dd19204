"""Certificates of engines on a real API server: made for a new pool, the same for the next leader, and a change of the
authority that no engine notices."""

import base64
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from lorafleet_contracts.admin import CertificateState
from lorafleet_contracts.names import ENGINE_CA, ENGINE_CA_KEY, tls_secret
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError
from lorafleet_kube.paths import SECRETS
from lorafleet_operator.shell.kinds import CONFIG_MAPS
from tests.support.operator_process import OperatorProcess
from tests.support.stub_engine import StubEngine
from tests.support.team import Object, Team, eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.timeout(240)]


class Mount:
    """A pool's Secret where its engine sees it: `renew` does what the kubelet and the engine do."""

    def __init__(self, team: Team, folder: Path) -> None:
        self._team = team
        self._folder = folder
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    async def secret(self) -> Object:
        async def ask() -> Object | None:
            with suppress(ApiError):
                return await self._team.api.get(SECRETS.path(self._team.namespace, tls_secret("smol")))
            return None

        return await eventually(ask, what="the pool's certificate")

    async def renew(self, engine: StubEngine | None = None) -> None:
        data = (await self.secret())["data"]
        for name in ("tls.crt", "tls.key"):
            (self._folder / name).write_bytes(base64.b64decode(data[name]))
        self.context.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key")
        if engine is not None:
            leaf = x509.load_pem_x509_certificate((self._folder / "tls.crt").read_bytes())
            engine.certificate = CertificateState(fingerprint=leaf.fingerprint(SHA256()).hex())
            engine.touch()


async def roots(api: KubeApi, system: str) -> int:
    """How many authorities whoever connects to engines is told to trust."""
    found = await api.get(CONFIG_MAPS.path(system, ENGINE_CA))
    return int(found["data"][ENGINE_CA_KEY].count("BEGIN CERTIFICATE"))


async def test_certificates_of_a_pool_through_a_new_leader_and_a_new_authority(
    team: Team, system: str, operator: OperatorProcess, tmp_path: Path
) -> None:
    mount = Mount(team, tmp_path)
    await team.pool()
    await team.settle_set()
    await mount.renew()
    engine = await team.engine(tls=mount.context)
    await mount.renew(engine)
    await team.adapter("pirate")
    await team.condition("LoraAdapter", "pirate", "Ready", "True")

    first = await mount.secret()
    assert operator.stop() == 0
    operator.start()
    await team.adapter("bard")
    await team.condition("LoraAdapter", "bard", "Ready", "True")
    assert await mount.secret() == first, "a new leader writes nothing"

    await team.api.request("DELETE", SECRETS.path(system, ENGINE_CA))

    async def reissued() -> bool:
        return (await mount.secret())["data"]["tls.crt"] != first["data"]["tls.crt"]

    await eventually(reissued, what="a certificate of the new authority")
    assert await roots(team.api, system) == 2, "the engine still shows one of the old authority"
    assert base64.b64decode((await mount.secret())["data"]["ca.crt"]).count(b"BEGIN") == 2
    await team.adapter("jester")
    await team.condition("LoraAdapter", "jester", "Ready", "True")
    await mount.renew(engine)

    async def old_is_gone() -> bool:
        return await roots(team.api, system) == 1

    await eventually(old_is_gone, what="the old authority is trusted no more")
    engine.touch()
    await team.adapter("knight")
    await team.condition("LoraAdapter", "knight", "Ready", "True")
    assert "Traceback" not in operator.log
