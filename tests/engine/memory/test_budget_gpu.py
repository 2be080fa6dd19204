"""What an engine really takes of a GPU stays within what it counted before it allocated anything."""

import gc

import pytest
import torch

from lorafleet_engine.bench.engine import RandomSource
from lorafleet_engine.bench.workload import QWEN25_7B
from lorafleet_engine.messages import DEFAULT_LIMITS, StepLimits
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.runner.assembly import Placement, assemble
from tests.engine.support.worst import worst_steps

pytestmark = pytest.mark.gpu

SMALL = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
CASES = {
    "wide": ({"num_hidden_layers": 2}, DEFAULT_LIMITS["cuda"], 8192, 12 << 30),
    "small": (SMALL, StepLimits(tokens=1024, sequences=64, distinct_adapters=16, rank_sum=512), 4096, 4 << 30),
}
BESIDE = 192_000_000
"""cuBLAS's workspaces, kernels' code and what the allocator cannot use: beside the budget, as the CUDA context is."""
LEAST_USED = 0.5
"""Of the bytes beside weights and pages, this share is used: what is counted and never taken would be missing as KV."""


@pytest.mark.parametrize("name", CASES)
def test_peak_stays_within_the_budget(name: str) -> None:
    changes, limits, length, usable = CASES[name]
    device, dtype = torch.device("cuda"), torch.bfloat16
    torch.zeros(8, 8, device=device) @ torch.zeros(8, 8, device=device)  # the context and cuBLAS are there
    gc.collect()
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info(device)
    config = parse_config({**QWEN25_7B, **changes}, {})
    core = assemble(config, RandomSource(device, dtype), Placement(device, dtype, usable, length, limits))
    gc.collect()
    torch.cuda.empty_cache()
    held = before - torch.cuda.mem_get_info(device)[0]
    core.runner.prepare()
    prepared = before - torch.cuda.mem_get_info(device)[0]
    for plan, draws in worst_steps(limits, length):
        core.runner.launch(plan, draws).wait()
    taken = before - torch.cuda.mem_get_info(device)[0]
    activations = core.plan.budget.activations
    counted = f"counted {usable / 1e6:.0f} MB, {activations / 1e6:.0f} of them beside weights and pages"
    found = f"taken {taken / 1e6:.0f}: {held / 1e6:.0f} when built, {prepared / 1e6:.0f} when prepared"
    assert taken <= usable + BESIDE, f"{found}; {counted}"
    assert usable - taken <= activations * (1 - LEAST_USED), f"{found}; {counted}"
