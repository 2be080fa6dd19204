"""Adapters made by peft itself with any options, and what peft says that they add to the base's weights."""

import copy
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn

from lorafleet_contracts.capacity import PROJECTIONS, ModelShape
from lorafleet_engine.adapters.pack import PackedAdapter
from lorafleet_engine.adapters.peft import module_path


def make_peft_model(base: nn.Module, options: dict[str, Any]) -> PeftModel:
    """A copy of the base with a fresh adapter."""
    found: PeftModel = get_peft_model(copy.deepcopy(base), LoraConfig(task_type="CAUSAL_LM", **options))
    return found


def set_random_weights(peft: PeftModel) -> None:
    """What training would have done: every number of the adapter is another."""
    generator = torch.Generator().manual_seed(5)
    for name, weight in peft.named_parameters():
        if "lora_" in name:
            weight.data.normal_(0, 0.2, generator=generator)


def lora_layers(peft: PeftModel) -> dict[str, nn.Module]:
    """The adapted modules by the base's own paths."""
    return {
        name.removeprefix("base_model.model."): module
        for name, module in peft.named_modules()
        if hasattr(module, "get_delta_weight") and hasattr(module, "lora_A") and module.lora_A
    }


@torch.no_grad()
def true_deltas(peft: PeftModel) -> dict[str, torch.Tensor]:
    """Path -> what peft adds to the weight of a module."""
    return {path: layer.get_delta_weight("default") for path, layer in lora_layers(peft).items()}  # type: ignore[operator]


def deltas_of_packed(packed: PackedAdapter, shape: ModelShape) -> dict[str, torch.Tensor]:
    """Path -> what our packed form adds."""
    found, at = {}, 0
    for layer, ranks in enumerate(packed.module_ranks):
        for module, rank in zip(PROJECTIONS, ranks, strict=True):
            if rank:
                fan_in, fan_out = shape.projection(module)
                down = packed.data[at : at + rank * fan_in].view(rank, fan_in)
                at += rank * fan_in
                up = packed.data[at : at + rank * fan_out].view(rank, fan_out)
                at += rank * fan_out
                found[module_path(layer, module)] = up.t() @ down
    assert at == packed.data.numel()
    return found
