"""Teacher-forced logits on the probe set: by the engine's own scheduler and runner, and by the plain reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lorafleet_contracts.probe import FORCED, PROBE_TOKENS
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.quality.reference import Adapter, PlainModel
from lorafleet_engine.runner.assembly import EngineCore
from lorafleet_engine.scheduler import sequence as scheduling

Probes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Distance:
    """How far logits are from others: relative L2 over all, and the share of positions with the same best token."""

    rel_l2: float
    same_argmax: float
    positions: int


def usable_probes(probes: Sequence[Sequence[int]], max_model_len: int) -> Probes:
    """Cut every probe to what is compared; those too short for FORCED tokens after one are left out."""
    length = min(PROBE_TOKENS, max_model_len)
    return tuple(tuple(probe[:length]) for probe in probes if len(probe[:length]) > FORCED)


def engine_logits(core: EngineCore, probes: Probes, adapter: Resident | None) -> torch.Tensor:
    """Logits [probes x (FORCED + 1), vocab] of the engine, in host memory; nothing else may be live in it."""
    rows: dict[tuple[int, int], torch.Tensor] = {}
    for number, probe in enumerate(probes):
        told = list(probe[: len(probe) - FORCED])
        core.scheduler.submit(scheduling.Sequence(str(number), told, FORCED + 1, adapter=adapter))
    while (plan := core.scheduler.plan()) is not None:
        logits = core.runner.logits(plan).to("cpu", copy=True)
        places = [_place(work.sequence) for work in plan.works if work.samples]
        rows |= dict(zip(places, logits, strict=True))
        core.scheduler.commit(plan, [_forced(probes[number], at) for number, at in places])
    return torch.stack([rows[number, at] for number in range(len(probes)) for at in range(FORCED + 1)])


@torch.inference_mode()
def plain_logits(model: PlainModel, probes: Probes, adapter: Adapter) -> torch.Tensor:
    """The same by the reference, on its device."""
    x = model.embed(probes)
    for layer in range(model.config.shape.layers):
        x = model.pass_layer(layer, x, adapter(layer))
    return model.logits(compared(x, probes))


def compared(x: torch.Tensor, probes: Probes) -> torch.Tensor:
    """The positions of the stream [probes, length, hidden] that are compared, in the order of engine_logits."""
    return torch.cat([x[number, len(probe) - FORCED - 1 : len(probe)] for number, probe in enumerate(probes)])


@torch.inference_mode()
def distance(found: torch.Tensor, wanted: torch.Tensor) -> Distance:
    """Compare logits [positions, vocab]; not finite where either is not."""
    other = wanted.to(found.device).float()
    missed = (found.float() - other).square().sum(dtype=torch.float64)
    same = (found.argmax(-1) == other.argmax(-1)).double().mean()
    whole = other.square().sum(dtype=torch.float64)
    return Distance((missed / whole).sqrt().item(), same.item(), len(wanted))


def _place(sequence: scheduling.Sequence) -> tuple[int, int]:
    """Number of the probe, and of the position among those compared."""
    return int(sequence.request_id), sequence.generated


def _forced(probe: Sequence[int], at: int) -> int:
    """The token to go on with; after the last position any will do, it ends there."""
    return probe[min(len(probe) - FORCED + at, len(probe) - 1)]
