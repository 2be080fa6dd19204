"""The model written down once more, as plainly as possible and layer by layer: what the engine's logits are held
against. Used by quality/ only.

It shares no code with layers/ and kernels/ but the table of angles: no cache, no batching of projections, and the
adapter is never merged: y = x W^T + (x A^T) B. Of the weights it holds one layer at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F

from lorafleet_engine.layers.weight import DenseWeight, MakeWeight
from lorafleet_engine.model.config import ModelConfig
from lorafleet_engine.model.decoder import parent
from lorafleet_engine.model.merged import LayerMatrices, Pair
from lorafleet_engine.model.rope import rope_table
from lorafleet_engine.model.weights import WeightSource

Projector: TypeAlias = Callable[[str, torch.Tensor], torch.Tensor]
Adapter: TypeAlias = Callable[[int], LayerMatrices]
"""Gives the matrices of a layer."""


@dataclass(frozen=True, slots=True)
class PlainModel:
    """`dtype` is that of weights, activations and products; norms and angles are fp32 inside. `device` computes.

    `make_weight` says how a projection's weight is held.
    """

    config: ModelConfig
    source: WeightSource
    device: torch.device
    dtype: torch.dtype
    make_weight: MakeWeight = DenseWeight

    def embed(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """The stream [rows, length, hidden] before the first layer; shorter rows are padded at their end."""
        shape, length = self.config.shape, max(map(len, rows))
        tokens = torch.tensor([[*row, *[0] * (length - len(row))] for row in rows], device=self.device)
        return F.embedding(tokens, self._get("model.embed_tokens.weight", (shape.vocab, shape.hidden)))

    def pass_layer(self, layer: int, x: torch.Tensor, matrices: LayerMatrices) -> torch.Tensor:
        """The stream after one layer with the adapter's `matrices` there."""

        def project(module: str, inner: torch.Tensor) -> torch.Tensor:
            return self._project((layer, module), inner, matrices.get(module))

        x = x + project("o_proj", self._attend(layer, self._norm(f"model.layers.{layer}.input_layernorm", x), project))
        inner = self._norm(f"model.layers.{layer}.post_attention_layernorm", x)
        return x + project("down_proj", F.silu(project("gate_proj", inner)) * project("up_proj", inner))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """x [S, hidden] of the last layer -> [S, vocab]."""
        shape = self.config.shape
        name = "model.embed_tokens.weight" if shape.tied_embeddings else "lm_head.weight"
        head = self._get(name, (shape.vocab, shape.hidden))
        return F.linear(self._norm("model.norm", x), head)

    def _get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self.source.get(name, shape).to(self.device, self.dtype)

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[-1]
        wide = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.config.norm_eps)
        return wide.to(self.dtype) * self._get(f"{name}.weight", (width,))

    def _project(self, place: tuple[int, str], x: torch.Tensor, adapted: Pair | None) -> torch.Tensor:
        layer, module = place
        shape = self.config.shape
        name, (fan_in, fan_out) = f"model.layers.{layer}.{parent(module)}.{module}", shape.projection(module)
        bias = None
        if shape.output_bias if module == "o_proj" else shape.attention_bias and parent(module) == "self_attn":
            bias = self._get(f"{name}.bias", (fan_out,))
        weight = self.make_weight(self._get(f"{name}.weight", (fan_out, fan_in)))
        out = weight(x.flatten(0, 1), bias).view(*x.shape[:2], fan_out)
        if adapted is not None:
            down, up = (matrix.to(self.device, self.dtype) for matrix in adapted)
            out = out + x @ down.t() @ up
        return out

    def _attend(self, layer: int, x: torch.Tensor, project: Projector) -> torch.Tensor:
        shape = self.config.shape
        parts = {}
        for side, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            part = project(f"{side}_proj", x).view(*x.shape[:2], heads, shape.head_dim)
            if shape.qk_norm and side != "v":
                part = self._norm(f"model.layers.{layer}.self_attn.{side}_norm", part)
            parts[side] = part.transpose(1, 2)
        group = shape.heads // shape.kv_heads
        keys, values = self._rotate(parts["k"]).repeat_interleave(group, 1), parts["v"].repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(self._rotate(parts["q"]), keys, values, is_causal=True)
        return out.transpose(1, 2).flatten(2)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., length, dim]: pairs (i, i + dim / 2) turned by their angle."""
        cosine, sine = rope_table(self.config, x.shape[-2], self.device).unbind(1)
        left, right = x.float().chunk(2, dim=-1)
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1).to(self.dtype)
