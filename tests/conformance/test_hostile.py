"""Every kind of wrong and hostile adapter, one after the other, on one engine: each is refused with its reason, and
neither the engine nor anybody on it notices. Needs an engine that runs here."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lorafleet_contracts.digest import adapter_files, folder_digest
from tests.conformance.client import BASE, Client, LoadedAdapter
from tests.engine.support.hostile import HOSTILE
from tests.support.engine_process import Engine
from tests.support.tiny_model import AdapterRecipe, make_adapter

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
pytestmark = pytest.mark.timeout(300)


def with_config(**changes: object) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | changes))

    return apply


def link_out(folder: Path) -> None:
    outside = folder.parents[2] / "outside.safetensors"
    (folder / WEIGHTS).rename(outside)
    (folder / WEIGHTS).symlink_to(outside)


def as_pickle(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")


def narrower(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({name: np.ascontiguousarray(tensor[..., :-8]) for name, tensor in tensors.items()}, folder / WEIGHTS)


def elsewhere(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["base_model.model.lm_head.lora_A.weight"] = np.ones((8, 64), np.float32)
    save_file(tensors, folder / WEIGHTS)


WRONG: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "another base by name": (with_config(base_model_name_or_path="llama-9000b"), 409, "llama-9000b"),
    "another base by shape": (narrower, 422, "shape"),
    "DoRA": (with_config(use_dora=True), 422, "DoRA"),
    "an option of tomorrow": (with_config(use_tomorrow=1), 422, "use_tomorrow"),
    "foreign modules": (elsewhere, 422, "lm_head"),
    "a rank that it has not": (with_config(r=9), 422, "rank 9"),
    "a pickle": (as_pickle, 422, "pickle"),
    "a config that is no JSON": (lambda folder: (folder / CONFIG).write_text("{"), 422, CONFIG),
    "no config": (lambda folder: (folder / CONFIG).unlink(), 502, CONFIG),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), 422, WEIGHTS),
    "a link that leaves the volume": (link_out, 422, "leaves its volume"),
}


@pytest.fixture
def volume(local: Engine) -> Path:
    assert local.folder is not None
    return local.folder / "volumes" / "models"


@pytest.fixture
def unharmed(client: Client, local: Engine, adapters: list[LoadedAdapter], volume: Path) -> object:
    """Before, meanwhile and after, the others answer as always, from the same processes and the same bytes."""
    keys = [BASE, *(adapter.key for adapter in adapters)]
    expected = {key: client.complete(key)["choices"] for key in keys}
    children, used = local.children(), client.state()["memory"]["adaptersUsed"]
    ended, wrong = threading.Event(), []

    def keep_asking() -> None:
        with Client(local) as asking:
            while not ended.is_set():
                wrong.extend(key for key in keys if asking.complete(key)["choices"] != expected[key])

    asking = threading.Thread(target=keep_asking)
    asking.start()
    yield None
    ended.set()
    asking.join(60)
    assert not asking.is_alive()
    assert wrong == []
    assert local.children() == children
    assert client.state()["memory"]["adaptersUsed"] == used
    made = make_adapter(volume / "afterwards", AdapterRecipe(31))
    good = client.bring("afterwards", f"pvc://models/{made.name}")
    assert client.complete(good.key)["choices"]
    client.delete(good.uid, good.digest)


@pytest.mark.usefixtures("unharmed")
def test_wrong_adapters_are_refused_and_nobody_notices(client: Client, volume: Path) -> None:
    for number, (name, (spoil, status, words)) in enumerate(WRONG.items()):
        spoil(make_adapter(volume / f"wrong-{number}", AdapterRecipe(40)))
        answer = client.inspect(f"wrong-{number}", f"pvc://models/wrong-{number}")
        assert answer.status_code == status, (name, answer.text)
        assert words in answer.text, name


@pytest.mark.usefixtures("unharmed")
def test_hostile_weights_are_refused_and_nobody_notices(client: Client, volume: Path) -> None:
    for number, (name, spoil) in enumerate(HOSTILE.items()):
        file = make_adapter(volume / f"hostile-{number}", AdapterRecipe(41)) / WEIGHTS
        file.write_bytes(spoil(file.read_bytes()))
        answer = client.inspect(f"hostile-{number}", f"pvc://models/hostile-{number}")
        assert (answer.status_code, answer.json()["code"]) == (422, "unsupported_adapter"), name
        assert answer.json()["reasons"], name
        assert len(answer.content) < 10_000, name


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite")])
def test_weights_that_are_no_numbers_are_refused_by_name(client: Client, volume: Path, value: float, word: str) -> None:
    folder = make_adapter(volume / f"numbers-{word}", AdapterRecipe(42))
    tensors = load_file(folder / WEIGHTS)
    name = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"
    tensors[name][3, 2] = value
    save_file(tensors, folder / WEIGHTS)
    uri = f"pvc://models/{folder.name}"
    digest = folder_digest(folder, adapter_files(folder))

    for answer in (client.inspect(folder.name, uri), client.put(folder.name, digest, uri)):
        assert answer.status_code == 422
        assert f"{name} has 1 of 512 values that are not finite ({word})" in answer.json()["reasons"][0]
    assert client.post("/v1/completions", f"{folder.name}@{digest}", {"prompt": "x"}).status_code == 503


@pytest.mark.usefixtures("unharmed")
def test_an_adapter_that_changes_nothing_is_a_warning(client: Client, volume: Path) -> None:
    folder = make_adapter(volume / "nothing", AdapterRecipe(44))
    tensors = load_file(folder / WEIGHTS)
    save_file({name: tensor * (".lora_B." not in name) for name, tensor in tensors.items()}, folder / WEIGHTS)

    report = client.inspect("nothing", "pvc://models/nothing").json()

    assert report["warnings"] == ["14 of 14 modules have a B of zeros and change nothing"]


@pytest.mark.usefixtures("unharmed")
def test_a_flipped_byte_is_a_mismatch(client: Client, volume: Path) -> None:
    folder = make_adapter(volume / "flipped", AdapterRecipe(43))
    good = client.inspect("flipped", "pvc://models/flipped").json()["digest"]
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)

    answer = client.inspect("flipped-2", "pvc://models/flipped", digest=f"sha256:{'0' * 64}")
    assert (answer.status_code, answer.json()["code"]) == (409, "digest_mismatch")
    assert client.inspect("flipped-2", "pvc://models/flipped").json()["digest"] != good
    assert client.put("flipped", good, "pvc://models/flipped").is_success, "the verified bytes are on the disk tier"
    client.delete("flipped", good)
