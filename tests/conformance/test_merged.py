"""An engine with an adapter merged into its weights answers as that version, and as nothing else."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.client import BASE, Client, LoadedAdapter, until
from tests.conformance.conftest import RECIPES
from tests.support.engine_process import Engine, get_state, running_engine, wait_ready
from tests.support.tiny_model import make_adapter, make_model

MERGED = 2
"""Of RECIPES: rank-stabilised, of rank 5."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, local: Engine) -> Path:
    """A volume of its own with the same base and adapter as the shared engine's."""
    made = tmp_path_factory.mktemp("merged")
    make_model(made / "volumes" / "models" / "tiny")
    make_adapter(made / "volumes" / "models" / "adapter", RECIPES[MERGED])
    return made


@pytest.fixture(scope="module")
def merged(folder: Path, adapters: list[LoadedAdapter]) -> Iterator[Client]:
    """A ready merged engine."""
    settings = {"MERGE_ADAPTER": "pvc://models/adapter", "MERGE_VERSION": adapters[MERGED].key}
    with running_engine(folder, "pvc://models/tiny", **settings) as started:
        wait_ready(started)
        with Client(started) as client:
            yield client


def test_answers_as_the_shared_engine(merged: Client, client: Client, adapters: list[LoadedAdapter]) -> None:
    key = adapters[MERGED].key
    for prompt in ("Once upon a time", "The sea is", "def main():"):
        shared, own = (each.complete(key, prompt, max_tokens=24) for each in (client, merged))
        assert own["choices"] == shared["choices"]
        assert own["system_fingerprint"] == shared["system_fingerprint"] == adapters[MERGED].digest
        assert own["choices"] != client.complete(BASE, prompt, max_tokens=24)["choices"]
    assert merged.chat(key)["choices"] == client.chat(key)["choices"]


@pytest.mark.parametrize("version", [BASE, "other"])
def test_nothing_else_is_answered(merged: Client, adapters: list[LoadedAdapter], version: str) -> None:
    wanted = adapters[0].key if version == "other" else version
    answer = merged.post("/v1/completions", wanted, {"model": "m", "prompt": "a", "max_tokens": 1})
    assert (answer.status_code, answer.headers["x-lorafleet-retry"]) == (503, "1")
    assert answer.json()["error"]["code"] == "version_missing"


def test_state_says_what_is_merged_and_how_near_it_is(merged: Client, adapters: list[LoadedAdapter]) -> None:
    wanted = adapters[MERGED]
    state = merged.state()
    assert state["ready"]
    found = state["merged"]
    assert (found["uid"], found["digest"]) == (wanted.uid, wanted.digest)
    assert found["parity"]["positions"] == 32 * 5
    assert found["parity"]["merged"] <= max(1.5 * found["parity"]["unmerged"], 1e-5)
    assert found["parity"]["sameArgmax"] == 1
    (version,) = state["versions"]
    assert (version["phase"], version["tier"], version["rank"], version["bytes"]) == ("resident", "gpu", 5, 0)
    assert state["memory"]["adaptersUsed"] == 0
    merged.complete(wanted.key)
    assert {row["adapter"] for row in merged.state()["usage"]} == {wanted.key}
    assert not list((merged.engine.folder or Path()).rglob("merge.blob"))


def test_admin_port_takes_no_other(merged: Client, adapters: list[LoadedAdapter]) -> None:
    wanted, other = adapters[MERGED], adapters[0]
    assert merged.put(wanted.uid, wanted.digest, wanted.uri).status_code == 200
    refused = merged.put(other.uid, other.digest, other.uri)
    assert (refused.status_code, refused.json()["code"]) == (409, "merged")
    assert wanted.key in refused.json()["detail"]
    assert merged.delete(wanted.uid, wanted.digest).status_code == 409
    assert merged.delete(other.uid, other.digest).status_code == 204
    assert merged.resident_keys() == {wanted.key}


def test_a_wrong_digest_is_told_and_never_ready(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "volumes").symlink_to(folder / "volumes")
    settings = {"MERGE_ADAPTER": "pvc://models/adapter", "MERGE_VERSION": "uid@sha256:" + "0" * 64}
    with running_engine(tmp_path, "pvc://models/tiny", **settings) as started:
        problem = until(lambda: _problem(started), bool)
        assert problem["code"] == "digest_mismatch"
        assert not get_state(started)["ready"]


def _problem(engine: Engine) -> dict[str, str]:
    try:
        found: dict[str, str] = get_state(engine)["base"].get("problem", {})
    except httpx.TransportError:
        return {}
    return found
