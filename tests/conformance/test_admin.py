"""The admin port: inspections, loads and unloads are idempotent, and what is refused says why."""

from collections.abc import Iterator

import httpx
import pytest

from tests.conformance.client import BASE, Client, LoadedAdapter, until
from tests.support.engine_process import Engine
from tests.support.tiny_model import AdapterRecipe, make_adapter

WRONG = "sha256:" + "ab" * 32


@pytest.fixture
def spare(client: Client, sources: list[str]) -> Iterator[LoadedAdapter]:
    """A version of its own for a test that unloads it."""
    loaded = client.bring("spare", sources[0])
    yield loaded
    client.delete("spare", loaded.digest)


def assert_problem(response: httpx.Response, status: int, code: str) -> None:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    problem = response.json()
    assert (problem["code"], problem["status"]) == (code, status)
    assert problem["title"]


def test_an_inspection_reports_and_repeats(client: Client, sources: list[str]) -> None:
    first, second = client.inspect("seen", sources[0]), client.inspect("seen", sources[0])

    assert first.json() == second.json()
    assert first.json()["digest"].startswith("sha256:")
    assert first.json()["rank"] > 0
    assert first.json()["bytes"] > 0
    assert first.json()["targetModules"]
    assert not any(key.startswith("seen@") for key in client.resident_keys())


def test_an_inspection_with_the_right_digest_passes(client: Client, adapters: list[LoadedAdapter]) -> None:
    assert client.inspect("seen", adapters[0].uri, 2, adapters[0].digest).status_code == 200


def test_a_declared_digest_must_match(client: Client, sources: list[str]) -> None:
    assert_problem(client.inspect("seen", sources[0], 3, WRONG), 409, "digest_mismatch")
    assert_problem(client.put("seen", WRONG, sources[0]), 409, "digest_mismatch")
    failed = [version for version in client.state()["versions"] if version["digest"] == WRONG]
    assert [(version["phase"], version["problem"]["code"]) for version in failed] == [("failed", "digest_mismatch")]
    assert client.delete("seen", WRONG).status_code == 204


def test_a_load_is_idempotent(client: Client, spare: LoadedAdapter) -> None:
    used = client.state()["memory"]["adaptersUsed"]

    assert client.put_once(spare.uid, spare.digest, spare.uri).status_code == 200
    assert client.state()["memory"]["adaptersUsed"] == used


def test_an_unload_is_idempotent_and_gives_the_bytes_back(client: Client, spare: LoadedAdapter) -> None:
    used = client.state()["memory"]["adaptersUsed"]

    assert client.delete(spare.uid, spare.digest).status_code == 204
    assert client.delete(spare.uid, spare.digest).status_code == 204

    assert spare.key not in client.resident_keys()
    until(lambda: client.state()["memory"]["adaptersUsed"], lambda now: now == used - spare.bytes, 5)


def test_reload_after_unload_answers_the_same(client: Client, spare: LoadedAdapter) -> None:
    before = client.complete(spare.key)["choices"]
    client.delete(spare.uid, spare.digest)
    assert client.put(spare.uid, spare.digest, spare.uri).is_success

    assert client.complete(spare.key)["choices"] == before


def test_unload_while_decoding_drains(client: Client, spare: LoadedAdapter) -> None:
    used = client.state()["memory"]["adaptersUsed"]
    body = client.long_body(200)
    with client.streaming("/v1/completions", spare.key, body) as events:
        next(events)
        answer = client.admin("DELETE", f"/adapters/{spare.uid}/versions/{spare.digest}")
        assert (answer.status_code, answer.json()["phase"]) == (202, "draining")
        refused = client.post("/v1/completions", spare.key, {"prompt": "x"})
        assert refused.status_code == 503
        assert refused.headers["x-lorafleet-retry"]
        chunks = list(events)

    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert client.delete(spare.uid, spare.digest).status_code == 204
    until(lambda: client.state()["memory"]["adaptersUsed"], lambda now: now == used - spare.bytes, 5)


def test_unload_waits_for_every_choice_of_a_request(client: Client, spare: LoadedAdapter) -> None:
    """References are counted by sequence: the first choice that ends frees nothing, the last one everything."""
    used = client.state()["memory"]["adaptersUsed"]
    body = client.long_body(60) | {"n": 4, "ignore_eos": False, "stop": ["ee", "in"]}
    with client.streaming("/v1/completions", spare.key, body) as events:
        first = next(events)
        assert client.admin("DELETE", f"/adapters/{spare.uid}/versions/{spare.digest}").status_code == 202
        ended = [each["choices"][0]["index"] for each in (first, *events) if each["choices"][0]["finish_reason"]]

    assert sorted(ended) == [0, 1, 2, 3]
    assert client.delete(spare.uid, spare.digest).status_code == 204
    until(lambda: client.state()["memory"]["adaptersUsed"], lambda now: now == used - spare.bytes, 5)


def test_an_update_loads_beside_the_old_version(client: Client, sources: list[str]) -> None:
    old, new = client.bring("moved", sources[0]), client.bring("moved", sources[1])
    assert {old.key, new.key} <= client.resident_keys()
    assert client.complete(old.key)["choices"] != client.complete(new.key)["choices"]

    client.delete("moved", old.digest)
    assert client.complete(new.key)["choices"]
    client.delete("moved", new.digest)


def test_the_same_digest_under_two_uids(client: Client, sources: list[str]) -> None:
    one, two = client.bring("one", sources[2]), client.bring("two", sources[2])
    assert one.digest == two.digest

    client.delete("one", one.digest)
    assert client.complete(two.key)["choices"]
    client.delete("two", two.digest)


def test_an_unreachable_source(client: Client) -> None:
    assert_problem(client.inspect("far", "http://127.0.0.1:1/adapter"), 502, "source_unreachable")
    assert_problem(client.inspect("far", "pvc://models/none"), 502, "source_unreachable")
    assert_problem(client.inspect("far", "pvc://models/../../etc"), 422, "source_forbidden")
    assert_problem(client.inspect("far", "gopher://x/y"), 400, "invalid_request")


def test_a_failure_is_tried_again(client: Client, local: Engine) -> None:
    uri = "pvc://models/late"
    assert_problem(client.inspect("late", uri), 502, "source_unreachable")
    assert local.folder is not None
    make_adapter(local.folder / "volumes/models/late", AdapterRecipe(9))

    assert client.inspect("late", uri).status_code == 200


@pytest.mark.parametrize(
    ("config", "status", "code"),
    [
        ({"use_dora": True}, 422, "unsupported_adapter"),
        ({"base_model_name_or_path": "another/model"}, 409, "base_mismatch"),
        ({"r": 9}, 422, "unsupported_adapter"),
    ],
)
def test_what_cannot_be_served_is_refused(
    client: Client, local: Engine, config: dict[str, object], status: int, code: str
) -> None:
    assert local.folder is not None
    name = f"bad-{code}-{len(str(config))}"
    make_adapter(local.folder / "volumes/models" / name, AdapterRecipe(9, config=config))

    assert_problem(client.inspect(name, f"pvc://models/{name}"), status, code)
    assert client.chat(BASE)["choices"]


def test_what_does_not_fit_says_how_much_is_missing(client: Client, local: Engine) -> None:
    assert local.folder is not None
    memory = client.state()["memory"]
    if memory["adapters"] > 1 << 28:
        pytest.skip("this device takes more than a test can make")
    loaded, response = [], None
    for number in range(1, 40):
        folder = make_adapter(local.folder / f"volumes/models/big-{number}", AdapterRecipe(number, rank=1024))
        uri = f"pvc://models/{folder.name}"
        report = client.inspect(folder.name, uri).json()
        response = client.put(folder.name, report["digest"], uri)
        if not response.is_success:
            break
        loaded.append((folder.name, report["digest"]))

    assert response is not None
    assert_problem(response, 413, "does_not_fit")
    problem = response.json()
    assert problem["needed"] == report["bytes"] > problem["free"] >= 0
    for uid, digest in loaded:
        assert client.delete(uid, digest).status_code == 204
    until(lambda: client.state()["memory"]["adaptersUsed"], lambda now: now == memory["adaptersUsed"], 5)
    assert client.put(folder.name, report["digest"], uri).is_success
    client.delete(folder.name, report["digest"])


@pytest.mark.parametrize("weights", [b"", b"\xff" * 8, b"\xff" * 7 + b"\x7f{}", b"PK\x03\x04pickle"])
def test_broken_weights_are_refused(client: Client, local: Engine, weights: bytes) -> None:
    assert local.folder is not None
    name = f"broken-{len(weights)}-{weights[:1].hex()}"
    folder = make_adapter(local.folder / "volumes/models" / name, AdapterRecipe(9))
    (folder / "adapter_model.safetensors").write_bytes(weights)

    assert_problem(client.inspect(name, f"pvc://models/{name}"), 422, "unsupported_adapter")


def test_an_adapter_s_own_chat_template_is_used(client: Client, local: Engine) -> None:
    assert local.folder is not None
    plain = make_adapter(local.folder / "volumes/models/plain", AdapterRecipe(21))
    own = make_adapter(local.folder / "volumes/models/own", AdapterRecipe(21))
    (own / "chat_template.jinja").write_text("Q: {{ messages[-1].content }} A:")
    versions = [client.bring(folder.name, f"pvc://models/{folder.name}") for folder in (plain, own)]
    assert versions[0].digest != versions[1].digest

    asked = client.chat(versions[1].key, "why")
    as_completion = client.complete(versions[0].key, "Q: why A:")
    assert asked["choices"][0]["message"]["content"] == as_completion["choices"][0]["text"]
    assert asked["usage"] == as_completion["usage"]
    for version in versions:
        client.delete(version.uid, version.digest)


def test_a_broken_chat_template_is_refused(client: Client, local: Engine) -> None:
    assert local.folder is not None
    folder = make_adapter(local.folder / "volumes/models/bent", AdapterRecipe(22))
    (folder / "chat_template.jinja").write_text("{% for %}")
    digest = client.inspect("bent", "pvc://models/bent").json()["digest"]

    assert_problem(client.put("bent", digest, "pvc://models/bent"), 422, "unsupported_adapter")


def test_pickles_are_refused(client: Client, local: Engine) -> None:
    assert local.folder is not None
    folder = make_adapter(local.folder / "volumes/models/pickled", AdapterRecipe(9))
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")

    response = client.inspect("pickled", "pvc://models/pickled")
    assert_problem(response, 422, "unsupported_adapter")
    assert "pickle" in response.json()["detail"]


@pytest.mark.parametrize("body", [{}, {"source": {}}, {"source": {"uri": 5}}, []])
def test_wrong_bodies_are_refused(client: Client, body: object) -> None:
    assert_problem(client.admin("PUT", f"/adapters/u/versions/{WRONG}", body), 400, "invalid_request")
    assert_problem(client.admin("POST", "/adapters/u/inspect", body), 400, "invalid_request")


@pytest.mark.parametrize("path", ["/adapters/u/versions/latest", "/adapters/a%40b/versions/" + WRONG])
def test_malformed_names_are_refused(client: Client, path: str) -> None:
    assert_problem(client.admin("DELETE", path), 400, "invalid_request")


def test_another_path_is_not_found(client: Client) -> None:
    assert_problem(client.admin("GET", "/nothing"), 404, "not_found")


def tier_of(client: Client, uid: str) -> str:
    (version,) = [version for version in client.state()["versions"] if version["uid"] == uid]
    assert version["phase"] == "resident"
    found: str = version["tier"]
    return found


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_version_on_a_slower_tier_rises_with_its_first_request(
    client: Client, spare: LoadedAdapter, tier: str
) -> None:
    expected = client.complete(spare.key)["choices"]
    client.delete(spare.uid, spare.digest)
    used = client.state()["memory"]["adaptersUsed"]
    assert client.put(spare.uid, spare.digest, spare.uri, tier).is_success
    assert tier_of(client, spare.uid) == tier
    assert client.state()["memory"]["adaptersUsed"] == used

    assert client.complete(spare.key)["choices"] == expected

    assert tier_of(client, spare.uid) == "gpu"
    assert client.state()["memory"]["adaptersUsed"] == used + spare.bytes


def test_a_version_on_a_slower_tier_can_be_wanted_on_the_device(client: Client, spare: LoadedAdapter) -> None:
    client.delete(spare.uid, spare.digest)
    assert client.put(spare.uid, spare.digest, spare.uri, "host").is_success
    assert client.put(spare.uid, spare.digest, spare.uri).is_success
    assert tier_of(client, spare.uid) == "gpu"


def test_a_request_waits_for_a_version_that_is_on_its_way(client: Client, spare: LoadedAdapter) -> None:
    expected = client.complete(spare.key)["choices"]
    client.delete(spare.uid, spare.digest)
    client.put_once(spare.uid, spare.digest, spare.uri)
    assert client.complete(spare.key)["choices"] == expected
