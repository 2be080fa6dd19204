"""Every kind of wrong and hostile adapter at once: each Stalled with its own reason, and nobody else notices."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from e2e.engines import restarts
from e2e.faults.conftest import stored
from e2e.faults.stage import Stage, fault, stalled
from e2e.faults.store import FaultyStore
from e2e.waiting import wait_until
from tests.engine.support.hostile import HOSTILE

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NOBODYS = f"sha256:{'0' * 64}"


def config(folder: Path, **changes: object) -> None:
    found = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(found | changes))


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def hostile(folder: Path, kind: str) -> None:
    (folder / WEIGHTS).write_bytes(HOSTILE[kind]((folder / WEIGHTS).read_bytes()))


def spoil_number(tensors: dict[str, torch.Tensor]) -> None:
    next(iter(tensors.values())).view(-1)[0] = float("nan")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "dora": (partial(config, use_dora=True), "DoRA"),
    "tomorrow": (partial(config, use_tomorrow=True), "use_tomorrow"),
    "converted": (partial(config, init_lora_weights="pissa"), "path_initial_model_for_weight_conversion"),
    "two-ranks": (lambda folder: (folder / CONFIG).write_text('{"r": 8, "r": 16}'), "twice"),
    "foreign": (partial(weights, change=lambda t: t.update({"lm_head.lora_A.weight": torch.ones(8, 8)})), "lm_head"),
    "no-number": (partial(weights, change=spoil_number), "not finite"),
    "twice": (partial(hostile, kind="a tensor twice"), "twice"),
    "overlapping": (partial(hostile, kind="overlapping tensors"), "offset"),
    "gigabytes": (partial(hostile, kind="a header of gigabytes"), "header"),
    "tiny-tensors": (partial(hostile, kind="10,000 tiny tensors"), "no LoRA tensors"),
    "flipped": (lambda folder: None, "digest"),
    "another-base": (lambda folder: None, "trainedOn"),
}
SPECS: dict[str, dict[str, object]] = {"another-base": {"trainedOn": {"digest": NOBODYS}}}


@pytest.fixture
def spoilt(store: FaultyStore, tmp_path: Path) -> FaultyStore:
    """The store, with the trained adapters and a spoilt copy of one for each kind."""
    for name, (spoil, _) in SPOILT.items():
        shutil.copytree(store.folder / "robot", tmp_path / name)
        spoil(tmp_path / name)
    store.folder = tmp_path
    return store


def test_each_is_refused_with_its_reason(stage: Stage, spoilt: FaultyStore) -> None:
    before = restarts(stage.fleet)
    with fault(stage, "wrong-adapters", "a dozen wrong and hostile adapters at once") as watch:
        watch.broken()
        wrong = {name: stored(spoilt, f"bad-{name}", name, **SPECS.get(name, {})) for name in SPOILT}
        wrong["flipped"]["spec"]["source"]["digest"] = NOBODYS  # type: ignore[index]
        stage.fleet.apply(*wrong.values())
        for name, (_, word) in SPOILT.items():
            told = partial(stalled, stage.fleet, f"bad-{name}")
            wait_until(lambda told=told, word=word: word in told(), seconds=90, what=f"{name} is told")  # type: ignore[misc]
        watch.seconds["told"] = watch.since()
        watch.wait_for_answers(1)
        for name in SPOILT:
            stage.fleet.delete("loraadapter", f"bad-{name}")
    assert restarts(stage.fleet) == before
