"""The model written down once more, as simply as possible, to check the engine's logits against.

Used by bench/smoke.py. It shares no code with layers/, kernels/ or model/decoder.py: no cache, no batching, no merged
projections; every weight is W, plus scale x B A where the row has an adapter. In fp32 it is the truth; in bfloat16 it
shows how far rounding alone leads away from it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lorafleet_engine.model.config import ModelConfig
from lorafleet_engine.model.weights import WeightSource

AdapterMatrices = Mapping[tuple[int, str], tuple[torch.Tensor, torch.Tensor]]
"""(layer, module) -> A [rank, in] and the scaled B transposed [rank, out]."""


@dataclass(frozen=True, slots=True)
class PlainModel:
    """Last-token logits of whole sequences; weights are fetched layer by layer from `source`.

    `dtype` is that of weights, activations and products; norms, softmax and angles are fp32 inside.
    """

    config: ModelConfig
    source: WeightSource
    dtype: torch.dtype

    @torch.inference_mode()
    def logits(self, rows: Sequence[Sequence[int]], adapters: Sequence[AdapterMatrices | None]) -> torch.Tensor:
        """Logits [len(rows), vocab] in fp32 after the last token of each row."""
        shape = self.config.shape
        embedding = self._get("model.embed_tokens.weight", (shape.vocab, shape.hidden))
        streams = [embedding[torch.tensor(row, device=embedding.device)] for row in rows]
        head = embedding if shape.tied_embeddings else None
        for layer in range(shape.layers):
            streams = self._layer(layer, streams, adapters)
        norm = self._get("model.norm.weight", (shape.hidden,))
        if head is None:
            head = self._get("lm_head.weight", (shape.vocab, shape.hidden))
        return torch.stack([self._norm(stream[-1], norm) @ head.t() for stream in streams]).float()

    def _get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self.source.get(name, shape).to(self.dtype)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.config.norm_eps)
        return (x.float() * scale).to(self.dtype) * weight

    def _layer(
        self, layer: int, streams: list[torch.Tensor], adapters: Sequence[AdapterMatrices | None]
    ) -> list[torch.Tensor]:
        shape = self.config.shape
        weights, biases = self._projections(layer)
        first, second = (
            self._get(f"model.layers.{layer}.{name}.weight", (shape.hidden,))
            for name in ("input_layernorm", "post_attention_layernorm")
        )

        def project(module: str, x: torch.Tensor, adapter: AdapterMatrices | None) -> torch.Tensor:
            y = x @ weights[module].t()
            if module in biases:
                y = y + biases[module]
            if adapter is not None and (layer, module) in adapter:
                down, up = adapter[layer, module]
                y = y + x @ down.to(self.dtype).t() @ up.to(self.dtype)
            return y

        done = []
        for x, adapter in zip(streams, adapters, strict=True):
            inner = self._norm(x, first)
            query, key, value = (project(name, inner, adapter) for name in ("q_proj", "k_proj", "v_proj"))
            x = x + project("o_proj", self._attend(query, key, value), adapter)
            inner = self._norm(x, second)
            gate, up = project("gate_proj", inner, adapter), project("up_proj", inner, adapter)
            done.append(x + project("down_proj", gate * torch.sigmoid(gate) * up, adapter))
        return done

    def _projections(self, layer: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        shape, weights, biases = self.config.shape, {}, {}
        for block, modules in (
            ("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")),
            ("mlp", ("gate_proj", "up_proj", "down_proj")),
        ):
            for module in modules:
                name, (fan_in, fan_out) = f"model.layers.{layer}.{block}.{module}", shape.projection(module)
                weights[module] = self._get(f"{name}.weight", (fan_out, fan_in))
                if shape.attention_bias and module in ("q_proj", "k_proj", "v_proj"):
                    biases[module] = self._get(f"{name}.bias", (fan_out,))
        return weights, biases

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        shape = self.config.shape
        length, dim = query.shape[0], shape.head_dim
        heads = query.view(length, shape.heads, dim).transpose(0, 1)
        keys, values = (x.view(length, shape.kv_heads, dim).transpose(0, 1) for x in (key, value))
        group = shape.heads // shape.kv_heads
        keys, values = self._rotate(keys).repeat_interleave(group, 0), values.repeat_interleave(group, 0)
        scores = self._rotate(heads) @ keys.transpose(1, 2) / math.sqrt(dim)
        hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        weights = scores.float().masked_fill(hidden, float("-inf")).softmax(-1).to(self.dtype)
        return (weights @ values).transpose(0, 1).reshape(length, -1)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x [heads, length, dim] as complex pairs (i, i + dim / 2) turned by position x theta^(-2 i / dim)."""
        half = x.shape[-1] // 2
        powers = torch.arange(half, device=x.device, dtype=torch.float64) / half
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * self.config.rope.theta**-powers
        turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.exp(1j * angles)
        return torch.cat((turned.real, turned.imag), dim=-1).to(self.dtype)
