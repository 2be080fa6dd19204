"""A decoder-only transformer of the Llama kind: wiring only, no memory, no scheduling, no adapter bookkeeping."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F

from lorafleet_contracts.capacity import ROW_PARALLEL, ModelShape
from lorafleet_engine.kernels.linear import linear
from lorafleet_engine.kernels.lora import LoraUpdate, apply_update
from lorafleet_engine.kernels.rope import HeadNorms, Heads
from lorafleet_engine.layers.attention import Attention
from lorafleet_engine.layers.batch import ForwardBatch
from lorafleet_engine.layers.linear import ProjectionGroup, Reduce
from lorafleet_engine.layers.mlp import GatedMlp
from lorafleet_engine.layers.norm import RmsNorm
from lorafleet_engine.layers.weight import DenseWeight, MakeWeight
from lorafleet_engine.model.config import ModelConfig
from lorafleet_engine.model.weights import WeightSource

GROUPS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))
"""Projections with the same input, in blob order; a step's LoraRows know each group."""


Below: TypeAlias = tuple[torch.Tensor, LoraUpdate | None]
"""What a layer adds to the stream, [T, hidden], and what is still to be added to that."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention and feed-forward, each behind a norm and added to the stream."""

    input_norm: RmsNorm
    attention: Attention
    post_norm: RmsNorm
    mlp: GatedMlp

    def __call__(self, x: torch.Tensor, below: Below | None, batch: ForwardBatch) -> tuple[torch.Tensor, Below]:
        """Take the stream [T, hidden] and what the layer below adds to it, return both again."""
        x, normed = (x, self.input_norm(x)) if below is None else self.input_norm.of_sum(x, *below)
        x, normed = self.post_norm.of_sum(x, *self.attention(normed, batch))
        return x, self.mlp(normed, batch.lora)


@dataclass(frozen=True, slots=True)
class Decoder:
    """The whole model. embedding and head [vocab, hidden] are one tensor where the model ties them."""

    embedding: torch.Tensor
    layers: tuple[DecoderLayer, ...]
    norm: RmsNorm
    head: torch.Tensor

    def __call__(self, batch: ForwardBatch, out: torch.Tensor) -> torch.Tensor:
        """Write logits of the batch's sample rows to out [S, vocab], in the model's dtype; the cache is written."""
        x = F.embedding(batch.tokens, self.embedding)
        below: Below | None = None
        for layer in self.layers:
            x, below = layer(x, below, batch)
        assert below is not None
        delta, update = below
        apply_update(delta, update)
        _, normed = self.norm.of_sum(x.index_select(0, batch.samples), delta.index_select(0, batch.samples), None)
        return linear(normed, self.head, None, out)


def build_decoder(
    config: ModelConfig, source: WeightSource, make_weight: MakeWeight = DenseWeight, reduce: Reduce | None = None
) -> Decoder:
    """Wire the tensors of `source`; `make_weight` decides how projections are held, all else stays as it is. `reduce`
    adds up over the GPUs where `config` and `source` are one GPU's share (see shards.py).

    Raises BrokenModelError for a missing tensor or another shape.
    """
    shape = config.shape
    embedding = source.get("model.embed_tokens.weight", (shape.vocab, shape.hidden))
    layers = tuple(build_layer(config, source, make_weight, number, reduce) for number in range(shape.layers))
    norm = RmsNorm(source.get("model.norm.weight", (shape.hidden,)), config.norm_eps)
    head = embedding if shape.tied_embeddings else source.get("lm_head.weight", (shape.vocab, shape.hidden))
    return Decoder(embedding, layers, norm, head)


def build_layer(
    config: ModelConfig, source: WeightSource, make_weight: MakeWeight, number: int, reduce: Reduce | None = None
) -> DecoderLayer:
    """Wire one layer, as build_decoder does."""
    shape, prefix = config.shape, f"model.layers.{number}"
    qkv, output, gate_up, down = (
        _build_group(shape, source, make_weight, (number, group), reduce) for group in range(len(GROUPS))
    )

    norms = None
    if shape.qk_norm:
        query, key = (source.get(f"{prefix}.self_attn.{name}_norm.weight", (shape.head_dim,)) for name in "qk")
        norms = HeadNorms(query, key, config.norm_eps)
    attention = Attention(qkv, output, number, Heads(shape.heads, shape.kv_heads, shape.head_dim), norms)
    before, after = (
        RmsNorm(source.get(f"{prefix}.{name}_layernorm.weight", (shape.hidden,)), config.norm_eps)
        for name in ("input", "post_attention")
    )
    return DecoderLayer(before, attention, after, GatedMlp(gate_up, down))


def _build_group(
    shape: ModelShape, source: WeightSource, make_weight: MakeWeight, place: tuple[int, int], reduce: Reduce | None
) -> ProjectionGroup:
    layer, group = place
    modules = GROUPS[group]
    names = [f"model.layers.{layer}.{parent(module)}.{module}" for module in modules]
    sizes = [shape.projection(module) for module in modules]
    weights = [
        source.get(f"{name}.weight", (fan_out, fan_in)) for name, (fan_in, fan_out) in zip(names, sizes, strict=True)
    ]
    bias = None
    if (shape.attention_bias, shape.output_bias, False, False)[group]:
        bias = _stack([source.get(f"{name}.bias", (fan_out,)) for name, (_, fan_out) in zip(names, sizes, strict=True)])
    widths = tuple(fan_out for _, fan_out in sizes)
    partial = reduce if modules[0] in ROW_PARALLEL else None
    return ProjectionGroup(make_weight(_stack(weights)), bias, widths, layer, group, partial)


def refill_layers(decoder: Decoder, config: ModelConfig, source: WeightSource, make_weight: MakeWeight) -> None:
    """Put the layers of another source into the tensors of `decoder`, one by one: graphs that read them stay right.

    Embedding, last norm and head stay. Raises BrokenModelError as build_decoder does.
    """
    for number, layer in enumerate(decoder.layers):
        _overwrite(layer, build_layer(config, source, make_weight, number))


def _overwrite(old: object, new: object) -> None:
    """Copy every tensor of a layer into its counterpart."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        old.copy_(new)
    elif is_dataclass(old):
        for field in fields(old):
            _overwrite(getattr(old, field.name), getattr(new, field.name))


def parent(module: str) -> str:
    """The block of a layer that holds `module` in published names."""
    return "mlp" if module in ("gate_proj", "up_proj", "down_proj") else "self_attn"


def _stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
