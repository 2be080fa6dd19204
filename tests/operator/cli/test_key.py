"""`lorafleet key` against a real API server."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from e2e.cluster.apiserver import ApiServer
from lorafleet_contracts.keys import key_digest, parse_key
from lorafleet_kube.access import load_access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_kube.paths import NAMESPACES
from lorafleet_operator.cli.key import TENANTS, register
from lorafleet_operator.shell.kinds import EVENTS
from tests.support.crds import install_crds

NAMESPACE = "team-keys"


def run(*arguments: str, action: str = "create") -> int:
    """The command as the `lorafleet` program runs it."""
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers(required=True))
    parsed = parser.parse_args(["key", action, *arguments])
    return int(parsed.run(parsed))


def ask(apiserver: ApiServer, question: Callable[[KubeApi], Awaitable[Any]]) -> Any:
    async def connected() -> Any:
        async with connect(await load_access(str(apiserver.kubeconfig))) as api:
            return await question(api)

    return asyncio.run(connected())


@pytest.fixture
def tenant(apiserver: ApiServer) -> str:
    """A fresh Tenant, as a GitOps tool would apply it."""
    name = f"t{uuid4().hex[:12]}"

    async def create(api: KubeApi) -> None:
        await install_crds(api)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await api.apply(NAMESPACES.path(name=NAMESPACE), namespace, manager="tests", force=True)
        await apply_tenant(api, name)

    ask(apiserver, create)
    return name


async def apply_tenant(api: KubeApi, name: str, **fields: Any) -> None:
    body = {
        "apiVersion": "lorafleet.io/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"poolRef": {"name": "smol"}, **fields},
    }
    await api.apply(TENANTS.path(NAMESPACE, name), body, manager="gitops")


def stored(apiserver: ApiServer, name: str) -> dict[str, dict[str, str]]:
    found = ask(apiserver, lambda api: api.get(TENANTS.path(NAMESPACE, name)))
    return {each["id"]: each for each in found["spec"].get("apiKeys", [])}


def events_of(apiserver: ApiServer, name: str) -> list[tuple[str, str]]:
    """Reasons and messages of the events about a Tenant."""
    query = {"fieldSelector": f"involvedObject.name={name}"}
    found = ask(apiserver, lambda api: api.get(EVENTS.path(NAMESPACE), query))
    return [(each["reason"], each["message"]) for each in found["items"]]


@pytest.mark.apiserver
def test_the_key_is_printed_once_and_only_its_hash_is_stored(
    apiserver: ApiServer, tenant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--tenant", tenant, "-n", NAMESPACE, "--kubeconfig", str(apiserver.kubeconfig)) == 0
    printed = capsys.readouterr()
    key = printed.out.removesuffix("\n")
    name = parse_key(key)
    assert (name.namespace, name.tenant, name.id) == (NAMESPACE, tenant, "k1")
    assert stored(apiserver, tenant) == {"k1": {"id": "k1", "sha256": key_digest(key)}}
    assert printed.err == ""
    ((reason, message),) = events_of(apiserver, tenant)
    assert reason == "KeyCreated"
    assert message.endswith(" made the API key k1, which does not expire")
    assert not message.startswith(" "), "who did it"
    assert key not in message


@pytest.mark.apiserver
def test_keys_pile_up_and_a_gitops_apply_leaves_them_alone(
    apiserver: ApiServer, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(apiserver.kubeconfig))
    for arguments in ([], ["--id", "ci"], ["--expires", "720h"]):
        assert run("--tenant", tenant, "-n", NAMESPACE, *arguments) == 0
    ask(apiserver, lambda api: apply_tenant(api, tenant))
    keys = stored(apiserver, tenant)
    assert set(keys) == {"k1", "ci", "k2"}
    expires = datetime.fromisoformat(keys["k2"]["expiresAt"])
    assert abs(expires - datetime.now(UTC) - timedelta(hours=720)) < timedelta(minutes=1)


@pytest.mark.apiserver
def test_a_taken_id_is_refused(apiserver: ApiServer, tenant: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--tenant", tenant, "-n", NAMESPACE, "--id", "k1", "--kubeconfig", str(apiserver.kubeconfig))
    assert run(*arguments) == 0
    before = stored(apiserver, tenant)
    capsys.readouterr()
    assert run(*arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "already has a key 'k1'" in printed.err
    assert stored(apiserver, tenant) == before


@pytest.mark.apiserver
@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--tenant", "absent"), "there is no Tenant"), (("--tenant", "TENANT", "--id", "No_Label"), "422 Invalid")],
)
def test_nothing_is_created_or_printed_on_errors(
    apiserver: ApiServer, tenant: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    filled = [tenant if each == "TENANT" else each for each in arguments]
    assert run(*filled, "-n", NAMESPACE, "--kubeconfig", str(apiserver.kubeconfig)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert stored(apiserver, tenant) == {}


@pytest.mark.apiserver
def test_keys_are_rotated_and_expired_one_by_one(
    apiserver: ApiServer, tenant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(apiserver.kubeconfig))
    where = ("--tenant", tenant, "-n", NAMESPACE)
    assert run(*where) == 0
    old = capsys.readouterr().out.strip()
    assert run("k1", *where, "--grace", "2h", action="rotate") == 0
    new = capsys.readouterr().out.strip()
    keys = stored(apiserver, tenant)
    assert keys["k2"] == {"id": "k2", "sha256": key_digest(new)}
    assert keys["k1"]["sha256"] == key_digest(old)
    assert sorted(reason for reason, _ in events_of(apiserver, tenant)) == ["KeyCreated", "KeyCreated", "KeyExpires"]
    left = datetime.fromisoformat(keys["k1"]["expiresAt"]) - datetime.now(UTC)
    assert timedelta(hours=1) < left <= timedelta(hours=2)
    assert run("k1", *where, "--in", "720h", action="expire") == 0  # never later than it would
    assert stored(apiserver, tenant) == keys
    assert run("k1", *where, action="expire") == 0
    ask(apiserver, lambda api: apply_tenant(api, tenant))
    keys = stored(apiserver, tenant)
    assert datetime.fromisoformat(keys["k1"]["expiresAt"]) <= datetime.now(UTC)
    capsys.readouterr()
    assert run(*where, action="list") == 0
    assert capsys.readouterr().out == f"k1\texpired {keys['k1']['expiresAt']}\nk2\tlasts\n"


@pytest.mark.apiserver
def test_what_cannot_be_rotated_is_left_as_it_is(
    apiserver: ApiServer, tenant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(apiserver.kubeconfig))
    where = ("--tenant", tenant, "-n", NAMESPACE)
    assert run("k9", *where, action="rotate") == 1
    assert "has no key 'k9'; it has: none" in capsys.readouterr().err
    theirs = {"id": "own", "sha256": "0" * 64, "expiresAt": "2099-01-01T00:00:00Z"}
    ask(apiserver, lambda api: apply_tenant(api, tenant, apiKeys=[theirs]))
    assert run("own", *where, action="rotate") == 1
    printed = capsys.readouterr()
    assert "set its expiresAt where it comes from" in printed.err
    assert printed.out == ""
    assert stored(apiserver, tenant) == {"own": theirs}


def test_no_cluster_is_a_clear_message(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert run("--tenant", "t", "-n", "n", "--kubeconfig", str(tmp_path / "absent")) == 1
    assert "no usable kubeconfig" in capsys.readouterr().err


@pytest.mark.parametrize("duration", ["0h", "5", "h", "1w", "-1h"])
def test_a_bad_duration_is_a_usage_error(duration: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--tenant", "t", "-n", "n", f"--expires={duration}")
    assert "is no duration" in capsys.readouterr().err
