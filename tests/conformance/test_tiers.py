"""What makes way on the device for what: versions wanted there, pinned there, or wanted on a slower tier."""

from collections.abc import Iterator

import pytest

from tests.conformance.client import Client, LoadedAdapter, until
from tests.support.engine_process import SMALL, Engine, running_engine, wait_ready
from tests.support.tiny_model import AdapterRecipe, make_adapter, make_model

WIDE = 1024
"""A rank of which a small engine holds few."""
pytestmark = pytest.mark.timeout(300)  # each engine of its own imports torch, on whatever the machine has left


@pytest.fixture
def narrow(tmp_path_factory: pytest.TempPathFactory, local: Engine) -> Iterator[Client]:
    """An engine with room for few adapters."""
    folder = tmp_path_factory.mktemp("narrow")
    make_model(folder / "volumes" / "models" / "tiny")
    with running_engine(folder, "pvc://models/tiny", MEMORY_BYTES=str(SMALL)) as engine, Client(engine) as client:
        wait_ready(engine)
        yield client


def add(client: Client, number: int, tier: str = "gpu", pinned: bool = False) -> LoadedAdapter:
    """Another adapter, on a tier."""
    name, uri = f"a{number}", f"pvc://models/a{number}"
    assert client.engine.folder is not None
    make_adapter(client.engine.folder / "volumes" / "models" / name, AdapterRecipe(20 + number, rank=WIDE))
    report = client.inspect(name, uri).json()
    assert client.put(name, report["digest"], uri, tier, pinned).is_success
    return LoadedAdapter(name, report["digest"], uri, report["bytes"])


def tiers(client: Client) -> dict[str, str]:
    """Where each version is."""
    return {f"{v['uid']}@{v['digest']}": v["tier"] for v in client.state()["versions"]}


def room(client: Client) -> int:
    """Bytes for adapters on the device."""
    return int(until(client.state, lambda state: "memory" in state)["memory"]["adapters"])


def test_versions_that_need_not_be_on_the_device_make_way_for_each_other(narrow: Client) -> None:
    kept = add(narrow, 0)
    # one more than fit beside the one that is to be on the device
    keys = [add(narrow, 1 + number, "host").key for number in range(room(narrow) // kept.bytes)]
    answers = {key: narrow.complete(key)["choices"] for key in (*keys, keys[-1])}
    assert {key: narrow.complete(key)["choices"] for key in keys} == answers

    found = tiers(narrow)
    assert found[kept.key] == "gpu"
    assert sorted(found[key] for key in keys) == ["gpu"] * (len(keys) - 1) + ["host"]


def test_a_request_takes_the_place_of_an_idle_version_but_never_of_a_pinned_one(narrow: Client) -> None:
    pinned = add(narrow, 0, pinned=True)
    kept = [add(narrow, 1 + number) for number in range(room(narrow) // pinned.bytes - 1)]
    late = add(narrow, 90, "host")
    assert tiers(narrow) == {each.key: "gpu" for each in (pinned, *kept)} | {late.key: "host"}

    for each in (late, *kept, late):
        assert narrow.complete(each.key)["choices"]
        found = tiers(narrow)
        assert found[each.key] == found[pinned.key] == "gpu"
    assert sorted(tiers(narrow).values()) == ["gpu"] * (len(kept) + 1) + ["host"]


def test_what_a_version_is_asked_to_be_changes_without_a_load(narrow: Client) -> None:
    version = add(narrow, 0)
    [before] = narrow.state()["versions"]
    assert narrow.put(version.uid, version.digest, version.uri, "host", pinned=True).status_code == 200
    [after] = narrow.state()["versions"]
    assert (after["wanted"], after["pinned"]) == ("host", True)
    assert {**after, "wanted": before["wanted"], "pinned": before["pinned"]} == before, "nothing else has changed"
