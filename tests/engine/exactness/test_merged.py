"""An engine with an adapter merged into its weights: peft's merge number for number, and parity on probes."""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lorafleet_engine.adapters.pack import pack_adapter
from lorafleet_engine.errors import ParityError
from lorafleet_engine.messages import Generate, LoopConfig, MergeConfig, SamplingParams, StepLimits
from lorafleet_engine.model.config import read_config
from lorafleet_engine.model.merged import MergedSource, unpack_blob
from lorafleet_engine.model.weights import SafetensorsSource
from lorafleet_engine.quality import merging
from lorafleet_engine.quality.probes import engine_logits
from tests.engine.support.driver import LoopDriver
from tests.engine.support.exactness import difference, greedy
from tests.engine.support.tiny import KINDS, VOCAB, TinyModel, make_model

LENGTH = 12
CPU = torch.device("cpu")
DRAW = torch.Generator().manual_seed(8)
PROBES = tuple(tuple(torch.randint(0, VOCAB, (length,), generator=DRAW).tolist()) for length in range(6, 70, 4))


def merge_of(model: TinyModel, kind: str, blobs: Path) -> MergeConfig:
    blobs.mkdir(exist_ok=True)
    shape = read_config(model.directory).shape
    return MergeConfig(pack_adapter(model.adapters[kind], shape, "float32").write(blobs / "merge"))


def settings_for(model: TinyModel, merge: MergeConfig, **changes: str) -> LoopConfig:
    limits = StepLimits(tokens=64, sequences=8)
    more = {"max_model_len": 128, "memory_bytes": 64 << 20, "limits": limits, "merge": merge, "probes": PROBES}
    return LoopConfig(str(model.directory), **more, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [*KINDS, "sharded", "bfloat16"])
def test_weights_are_those_of_peft(tiny: Callable[[str], TinyModel], tmp_path: Path, kind: str) -> None:
    model = tiny("qwen2")
    blob, shape = merge_of(model, kind, tmp_path).blob, read_config(model.directory).shape
    data = torch.from_file(blob.path, shared=False, size=blob.bytes // 4, dtype=torch.float32)
    matrices = unpack_blob(data, blob.module_ranks, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.merged(kind).state_dict()
    with SafetensorsSource(model.directory, CPU, torch.float32) as source:
        merged = MergedSource(source, matrices, torch.float32)
        changed = 0
        for name, weight in expected.items():
            found = merged.get(name, tuple(weight.shape))
            assert torch.allclose(found, weight, rtol=1e-5, atol=1e-5), name
            changed += not torch.equal(found, source.get(name, tuple(weight.shape)))
        assert changed == len(matrices)


@pytest.mark.parametrize(("family", "kind"), [("llama", "rslora"), ("qwen2", "patterns"), ("qwen2", "r256")])
def test_answers_are_those_of_peft(tiny: Callable[[str], TinyModel], tmp_path: Path, family: str, kind: str) -> None:
    model = tiny(family)
    before = _sha(model.directory)
    settings = settings_for(model, merge_of(model, kind, tmp_path / "blobs"), prefix_cache="shared")
    driver = LoopDriver.start(settings, tmp_path / "blobs")
    parity = driver.core.parity
    assert parity is not None
    assert 0 < parity.merged < 1e-5
    assert 0 < parity.unmerged < 1e-5
    assert (parity.same_argmax, parity.positions) == (1, 5 * len(PROBES))
    assert driver.core.residency.bytes == 0
    assert driver.core.pages.free == driver.core.pages.total
    prompts = [probe for probe in PROBES if len(probe) < 60]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = greedy(model.merged(kind), prompts, LENGTH)
    sampling = SamplingParams(LENGTH, temperature=0, logprobs=0)
    answers = driver.run(Generate(str(n), None, prompt, sampling) for n, prompt in enumerate(prompts))
    for number, reference in enumerate(expected):
        answer = answers[str(number)]
        assert difference(reference, answer.tokens, answer.logprobs) is None
    assert _sha(model.directory) == before, "the base's files were written to"


@pytest.mark.parametrize("quantization", ["none", "fp8"])
def test_rounded_once(tmp_path: Path, quantization: str) -> None:
    """In bfloat16, rounded to 8 bits or not, the merged engine is about as near as the unmerged one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_model(tmp_path, {"model_type": "qwen3", "head_dim": 32, "attention_bias": True}, ("all-r8",))
    merge = merge_of(model, "all-r8", tmp_path / "blobs")
    parity = merging.start_engine(settings_for(model, merge, dtype="bfloat16", quantization=quantization)).parity
    assert parity is not None
    assert parity.merged <= 1.5 * parity.unmerged
    assert 1e-3 < parity.unmerged < (0.03 if quantization == "none" else 0.3)


@pytest.mark.parametrize("mutant", ["scale", "neighbour", "layer left out"])
def test_wrong_weights_fail(tiny: Callable[[str], TinyModel], tmp_path: Path, mutant: str) -> None:
    model = tiny("llama")
    merge = merge_of(model, "all-r8", tmp_path / "blobs")
    settings = settings_for(model, merge, dtype="bfloat16")
    core = merging.start_core(settings)
    data = torch.from_file(merge.blob.path, shared=False, size=merge.blob.bytes // 4, dtype=torch.float32)
    right = dict(unpack_blob(data, merge.blob.module_ranks, core.config.shape))
    if mutant == "scale":
        wrong = {place: (down, up * 1.1) for place, (down, up) in right.items()}
    elif mutant == "neighbour":
        wrong = {place: (down, right[(place[0] + 1) % 3, place[1]][1]) for place, (down, _) in right.items()}
    else:
        wrong = {place: pair for place, pair in right.items() if place[0] != 1}
    with SafetensorsSource(model.directory, CPU, torch.float32) as source:
        truth = merging.reference_logits(core.config, source, right, PROBES)
        unmerged = merging.unmerged_logits(core, data, merge, PROBES)
        merging.merge_weights(core, source, wrong)
        with pytest.raises(ParityError, match=r"fails parity on 80 positions .* logits [01]\.\d+ from"):
            merging.judge(engine_logits(core, PROBES, None), unmerged, truth)
        merging.merge_weights(core, source, right)
        merging.judge(engine_logits(core, PROBES, None), unmerged, truth)


def test_no_probe_no_start(tiny: Callable[[str], TinyModel], tmp_path: Path) -> None:
    model = tiny("llama")
    settings = replace(settings_for(model, merge_of(model, "all-r8", tmp_path)), probes=((1, 2, 3),))
    with pytest.raises(ParityError, match="no probe"):
        merging.start_engine(settings)


def _sha(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
