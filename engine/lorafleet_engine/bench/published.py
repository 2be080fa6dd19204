"""A random model written to files as published ones are, for engines whose processes read files.

Used by bench/tensor_parallel.py and by tests that run where there is no transformers.
"""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lorafleet_engine.layers.weight import DenseWeight
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.model.decoder import build_layer
from lorafleet_engine.model.weights import WeightSource

WRITERS = 8
INDEX = "model.safetensors.index.json"


@dataclass(slots=True)
class _Recorder:
    """Passes on what it is asked for, and remembers it."""

    source: WeightSource
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See WeightSource."""
        tensor = self.tensors[name] = self.source.get(name, shape)
        return tensor


def publish_random(folder: Path, raw: dict[str, Any], source: WeightSource) -> Path:
    """Write config.json `raw` and the weights that `source` gives for it, a file a layer. Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    config, where = parse_config(raw, {}), dict[str, str]()
    shape = config.shape
    outer = {"model.embed_tokens.weight": (shape.vocab, shape.hidden), "model.norm.weight": (shape.hidden,)}
    if not shape.tied_embeddings:
        outer["lm_head.weight"] = (shape.vocab, shape.hidden)
    with ThreadPoolExecutor(WRITERS) as pool:
        written: list[Future[None]] = []

        def write(name: str, tensors: dict[str, torch.Tensor]) -> None:
            where.update(dict.fromkeys(tensors, name))
            written.append(pool.submit(save_file, tensors, folder / name))

        write("model-outer.safetensors", {name: source.get(name, size).cpu() for name, size in outer.items()})
        for number in range(shape.layers):
            recorder = _Recorder(source)
            build_layer(config, recorder, DenseWeight, number)
            here = {name: tensor.cpu() for name, tensor in recorder.tensors.items()}
            write(f"model-{number:05d}.safetensors", here)
        for future in written:
            future.result()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder
