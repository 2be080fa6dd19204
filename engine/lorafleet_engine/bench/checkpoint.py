"""The workload's model as a checkpoint on disk, with a tokenizer whose every id has text. Used by parts/http.py."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from safetensors.torch import save_file

from lorafleet_contracts.capacity import PROJECTIONS, ModelShape
from lorafleet_engine.bench.workload import write_model
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.model.decoder import parent
from lorafleet_engine.model.weights import WeightSource

WRITERS = 7
BIASED = ("q_proj", "k_proj", "v_proj")
Shapes = list[tuple[str, tuple[int, ...]]]


def write_checkpoint(folder: Path, raw: dict[str, Any], source: WeightSource) -> Path:
    """Write config, weights and tokenizer into `folder`, or take what a former call has written."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return folder
    write_model(folder, raw)
    shape = parse_config(raw, {}).shape
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(shape.vocab)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }}"}))
    groups = [_outer(shape), *(_layer(shape, layer) for layer in range(shape.layers))]
    where: dict[str, str] = {}
    with ThreadPoolExecutor(WRITERS) as pool:
        written = []
        for number, group in enumerate(groups):
            name = f"model-{number + 1:05d}-of-{len(groups):05d}.safetensors"
            tensors = {each: source.get(each, size).cpu().contiguous() for each, size in group}
            written.append(pool.submit(save_file, tensors, folder / name))
            where |= dict.fromkeys(tensors, name)
        for each in written:
            each.result()
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def _outer(shape: ModelShape) -> Shapes:
    return [
        ("model.embed_tokens.weight", (shape.vocab, shape.hidden)),
        ("lm_head.weight", (shape.vocab, shape.hidden)),
        ("model.norm.weight", (shape.hidden,)),
    ]


def _layer(shape: ModelShape, number: int) -> Shapes:
    prefix = f"model.layers.{number}"
    tensors: Shapes = [
        (f"{prefix}.{name}.weight", (shape.hidden,)) for name in ("input_layernorm", "post_attention_layernorm")
    ]
    for module in PROJECTIONS:
        fan_in, fan_out = shape.projection(module)
        tensors.append((f"{prefix}.{parent(module)}.{module}.weight", (fan_out, fan_in)))
        if module in BIASED:
            tensors.append((f"{prefix}.{parent(module)}.{module}.bias", (fan_out,)))
    return tensors


def _tokenizer(vocab: int) -> dict[str, Any]:
    """A byte-level tokenizer of `vocab` tokens: words of letters, so that any answer is text of an ordinary size."""
    entries = list(islice(_words(), vocab))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {entry: number for number, entry in enumerate(entries)},
            "merges": [],
        },
    }


def _words() -> Iterator[str]:
    for size in range(1, 5):
        for letters in product(ascii_lowercase, repeat=size):
            yield "Ġ" * (size > 1) + "".join(letters)
