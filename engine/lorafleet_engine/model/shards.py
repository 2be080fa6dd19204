"""One GPU's share of a model that several hold together: its weights while they are read, its adapters' rows.

Heads and feed-forward columns are shared out. q, k, v, gate and up are cut along their outputs, o and down along their
inputs, so that what o and down give is added up over the GPUs. LoRA is cut the same way: B of the former, A of the
latter. Used by runner/ and by the processes of a tensor-parallel engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from lorafleet_contracts.capacity import PROJECTIONS, ROW_PARALLEL, ModelShape, ShardError, shard_shape
from lorafleet_engine.errors import UnsupportedModelError
from lorafleet_engine.model.config import ModelConfig
from lorafleet_engine.model.decoder import parent
from lorafleet_engine.model.merged import LayerMatrices
from lorafleet_engine.model.weights import WeightSource


@dataclass(frozen=True, slots=True)
class Shard:
    """The `rank`th of `size` equal shares."""

    rank: int
    size: int

    def of(self, width: int) -> slice:
        """The share of a dimension of the whole model, which `size` divides."""
        own = width // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def config(self, config: ModelConfig) -> ModelConfig:
        """The model that this share is computed as. Raises UnsupportedModelError for one that cannot be cut so."""
        try:
            return replace(config, shape=shard_shape(config.shape, self.size))
        except ShardError as error:
            raise UnsupportedModelError([str(error)]) from error


WHOLE = Shard(0, 1)


@dataclass(frozen=True, slots=True)
class ShardedSource:
    """Gives a share's tensors, of the share's shapes, out of a source of whole ones; see WeightSource."""

    base: WeightSource
    shard: Shard

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See WeightSource. What is not cut is whole on every GPU, but for o's bias: the sum must have it once."""
        place = _cut(name)
        if place is None:
            return self.base.get(name, shape)
        module, dimension = place
        if module in ROW_PARALLEL and dimension == 0:
            bias = self.base.get(name, shape)
            return bias if self.shard.rank == 0 else torch.zeros_like(bias)
        whole = list(shape)
        whole[dimension] *= self.shard.size
        tensor = self.base.get(name, tuple(whole))
        start = self.shard.rank * shape[dimension]
        return tensor.narrow(dimension, start, shape[dimension]).clone(memory_format=torch.contiguous_format)


def _cut(name: str) -> tuple[str, int] | None:
    """The projection that a tensor belongs to and the dimension along which it is cut: 0 also for a bias."""
    for module in PROJECTIONS:
        _, found, kind = name.partition(f".{parent(module)}.{module}.")
        if found:
            return module, int(module in ROW_PARALLEL and kind == "weight")
    return None


def shard_adapter(
    blob: torch.Tensor, module_ranks: Sequence[Sequence[int]], whole: ModelShape, shard: Shard
) -> torch.Tensor:
    """A share's rows of a packed adapter (1-D, see messages.BlobRef), packed in the same order."""
    sides = [_adapter_sides(module, whole, shard) for module in PROJECTIONS]
    size = sum(
        rank * (cut.stop - cut.start)
        for ranks in module_ranks
        for rank, pair in zip(ranks, sides, strict=True)
        for _, cut in pair
    )
    out = torch.empty(size, dtype=blob.dtype)
    at = written = 0
    for ranks in module_ranks:
        for rank, pair in zip(ranks, sides, strict=True):
            for width, cut in pair:
                own = cut.stop - cut.start
                rows = blob[at : at + rank * width].view(rank, width)
                out[written : written + rank * own].view(rank, own).copy_(rows[:, cut])
                at += rank * width
                written += rank * own
    return out


def _adapter_sides(module: str, whole: ModelShape, shard: Shard) -> tuple[tuple[int, slice], tuple[int, slice]]:
    """(width, share) of A's rows and of B's."""
    fan_in, fan_out = whole.projection(module)
    if module in ROW_PARALLEL:
        return (fan_in, shard.of(fan_in)), (fan_out, slice(0, fan_out))
    return (fan_in, slice(0, fan_in)), (fan_out, shard.of(fan_out))


def join_matrices(shares: Sequence[LayerMatrices]) -> LayerMatrices:
    """The whole of a version's matrices in one layer, out of all shares by rank."""
    whole = {}
    for module, (down, up) in shares[0].items():
        if module in ROW_PARALLEL:
            whole[module] = torch.cat([share[module][0] for share in shares], dim=1), up
        else:
            whole[module] = down, torch.cat([share[module][1] for share in shares], dim=1)
    return whole
