"""A published model's layers on the device, one after another, each brought by a thread while the last is in use.

Used by checking.py, beside an engine that serves: nothing here waits on the loop's thread.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import torch

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.model.decoder import parent
from lorafleet_engine.model.weights import WeightSource


class LayersAhead:
    """A WeightSource of one layer at a time, and of `kept` tensors that are on the device anyway."""

    def __init__(
        self, source: WeightSource, shape: ModelShape, kept: Mapping[str, torch.Tensor], device: torch.device
    ) -> None:
        self._source = source
        self._shape = shape
        self._kept = dict(kept)
        self._layer: dict[str, torch.Tensor] = {}
        self._coming: Future[dict[str, torch.Tensor]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="quality")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def bring(self, layer: int) -> None:
        """Start to bring a layer; `take` gives it."""
        self._coming = self._thread.submit(self._fetch, layer)

    def take(self) -> bool:
        """Put the layer that was asked for in place of the last one; False while it is on its way.

        Raises BrokenModelError.
        """
        if self._coming is None or not self._coming.done():
            return False
        self._layer, self._coming = self._coming.result(), None
        return True

    def drop(self) -> None:
        """Let go of what is held."""
        self._layer, self._coming = {}, None

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See WeightSource."""
        return self._layer[name] if name in self._layer else self._kept[name]

    def _fetch(self, layer: int) -> dict[str, torch.Tensor]:
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            found = {name: self._source.get(name, shape) for name, shape in layer_tensors(self._shape, layer).items()}
        if self._stream is not None:
            self._stream.synchronize()
            for tensor in found.values():  # their memory goes back only after the loop's stream has read it
                tensor.record_stream(torch.cuda.default_stream(tensor.device))
        return found


def layer_tensors(shape: ModelShape, layer: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a layer's published tensors."""
    prefix = f"model.layers.{layer}"
    found: dict[str, tuple[int, ...]] = {
        f"{prefix}.{name}_layernorm.weight": (shape.hidden,) for name in ("input", "post_attention")
    }
    for module in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"):
        path, (fan_in, fan_out) = f"{prefix}.{parent(module)}.{module}", shape.projection(module)
        found[f"{path}.weight"] = (fan_out, fan_in)
        if (module[0] in "qkv" and shape.attention_bias) or (module == "o_proj" and shape.output_bias):
            found[f"{path}.bias"] = (fan_out,)
    if shape.qk_norm:
        found |= {f"{prefix}.self_attn.{side}_norm.weight": (shape.head_dim,) for side in "qk"}
    return found
