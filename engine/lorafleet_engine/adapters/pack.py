"""An adapter's tensors as one array in blob order (see messages.BlobRef). Called by the loader process only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lorafleet_contracts.capacity import PROJECTIONS, ModelShape
from lorafleet_engine.adapters.peft import AdaptedModule, AdapterPlan, plan_adapter
from lorafleet_engine.errors import BrokenAdapterError
from lorafleet_engine.messages import BlobRef

DType = Literal["float32", "bfloat16"]
_TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """`data` is 1-D, of the engine's dtype; `module_ranks` [layer][projection] is its layout."""

    data: torch.Tensor
    dtype: DType
    rank: int
    module_ranks: tuple[tuple[int, ...], ...]

    @property
    def bytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    def write(self, path: Path) -> BlobRef:
        """Write the bytes to `path` (a file that the loop can map) and return the reference to send."""
        path.write_bytes(self.data.view(torch.uint8).numpy().data)
        return BlobRef(str(path), self.bytes, self.dtype, self.rank, self.module_ranks)


def pack_adapter(adapter_dir: Path, shape: ModelShape, dtype: DType) -> PackedAdapter:
    """Pack for a base of `shape`. Raises what plan_adapter raises, and BrokenAdapterError for values that are not
    finite in `dtype`."""
    plan = plan_adapter(adapter_dir, shape)
    ranks = [[0] * len(PROJECTIONS) for _ in range(shape.layers)]
    for module in plan.modules:
        ranks[module.layer][PROJECTIONS.index(module.module)] = module.rank
    parts: list[torch.Tensor] = []
    for module in plan.modules:
        parts += [rows.reshape(-1) for rows in _module_rows(plan, module, _TORCH[dtype])]
    return PackedAdapter(
        data=torch.cat(parts),
        dtype=dtype,
        rank=max(module.rank for module in plan.modules),
        module_ranks=tuple(tuple(row) for row in ranks),
    )


def check_values(adapter_dir: Path, shape: ModelShape, dtype: DType) -> tuple[str, ...]:
    """Read every number as packing would, and give the warnings. Raises what pack_adapter raises."""
    plan = plan_adapter(adapter_dir, shape)
    idle = sum(not bool(_module_rows(plan, module, _TORCH[dtype])[1].any()) for module in plan.modules)
    return (f"{idle} of {len(plan.modules)} modules have a B of zeros and change nothing",) if idle else ()


def _module_rows(plan: AdapterPlan, module: AdaptedModule, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, in] and the scaled B transposed [rank, out]; the scale is applied in fp32, before rounding."""
    found = plan.weights.read([module.tensor_a, module.tensor_b])
    down = found[module.tensor_a].to(dtype)
    up = (found[module.tensor_b].float() * module.scale).t().to(dtype)
    for name, used in ((module.tensor_a, down), (module.tensor_b, up)):
        if not bool(torch.isfinite(used).all()):
            raise BrokenAdapterError([_not_finite(name, found[name], dtype)])
    return down, up


def _not_finite(name: str, saved: torch.Tensor, dtype: torch.dtype) -> str:
    wrong = int((~torch.isfinite(saved)).sum())
    if wrong == 0:
        return f"{name} has values that are too large for {dtype} with this scale: train with a smaller alpha"
    kind = "NaN" if bool(torch.isnan(saved).any()) else "infinite"
    return f"{name} has {wrong} of {saved.numel()} values that are not finite ({kind}): the training diverged"
