"""Starts an engine with one adapter merged into its weights, after comparing both on the probe set. Called by loop.py.

The reference runs first and alone, so that no two of model, pool and reference need memory at the same time; then the
engine answers unmerged, its weights are overwritten layer by layer, and it answers again.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from lorafleet_contracts.probe import MERGED_FACTOR
from lorafleet_engine.errors import ParityError
from lorafleet_engine.messages import LoopConfig, MergeConfig, Parity
from lorafleet_engine.model.config import ModelConfig, read_config
from lorafleet_engine.model.decoder import refill_layers
from lorafleet_engine.model.merged import Matrices, MergedSource, of_layer, unpack_blob
from lorafleet_engine.model.weights import SafetensorsSource, WeightSource
from lorafleet_engine.parallel.gang import Lost, ignore
from lorafleet_engine.parallel.start import start_team
from lorafleet_engine.quality.probes import Probes, distance, engine_logits, plain_logits, usable_probes
from lorafleet_engine.quality.reference import PlainModel
from lorafleet_engine.runner.assembly import FORMS, EngineCore, start_core

EXACT = 1e-5
"""Relative L2 up to which two ways of summing in fp32 differ."""
KEY = "merged"


def start_engine(settings: LoopConfig, lost: Lost = ignore) -> EngineCore:
    """Assemble the engine that `settings` describe, over several processes or alone, merged or not. Raises what these
    ways raise. `lost` see start_team."""
    if settings.tensor_parallel > 1:
        return start_team(settings, lost)
    return start_core(settings) if settings.merge is None else start_merged(settings, settings.merge)


def start_merged(settings: LoopConfig, merge: MergeConfig) -> EngineCore:
    """Assemble the engine and merge. Raises what start_core raises, and ParityError with the figures."""
    torch.set_num_threads(settings.threads)
    config = read_config(Path(settings.model_dir))
    probes = usable_probes(settings.probes, settings.max_model_len)
    if not probes:
        raise ParityError("no probe is long enough to compare the merged adapter on")
    data = torch.from_file(merge.blob.path, shared=False, size=merge.blob.bytes // 4, dtype=torch.float32)
    with SafetensorsSource(Path(settings.model_dir), torch.device(settings.device), torch.float32) as source:
        matrices = unpack_blob(data, merge.blob.module_ranks, config.shape)
        truth = reference_logits(config, source, matrices, probes)
        core = start_core(settings)
        unmerged = unmerged_logits(core, data, merge, probes)
        merge_weights(core, source, matrices)
    return replace(core, parity=judge(engine_logits(core, probes, None), unmerged, truth))


def reference_logits(config: ModelConfig, source: WeightSource, matrices: Matrices, probes: Probes) -> torch.Tensor:
    """What the model in fp32 says with the adapter. `source` gives fp32 on the device that is to compute."""
    device = source.get("model.norm.weight", (config.shape.hidden,)).device
    model = PlainModel(config, source, device, torch.float32)
    return plain_logits(model, probes, partial(of_layer, matrices)).cpu()


def unmerged_logits(core: EngineCore, data: torch.Tensor, merge: MergeConfig, probes: Probes) -> torch.Tensor:
    """What the engine says with the adapter resident beside its base, as a shared engine would; it is gone afterwards.

    Raises DoesNotFitError.
    """
    blob = data.to(core.placement.dtype)
    size = blob.numel() * blob.element_size()
    resident = core.residency.place(KEY, size, core.geometry.pages_of(merge.blob.module_ranks), merge.blob.rank)
    core.runner.pool.install(resident, blob, merge.blob.module_ranks)
    logits = engine_logits(core, probes, resident)
    core.residency.remove(KEY)
    return logits


def merge_weights(core: EngineCore, source: WeightSource, matrices: Matrices) -> None:
    """Overwrite the core's weights by those with the adapter. `source` gives the base in fp32."""
    merged = MergedSource(source, matrices, core.placement.dtype)
    refill_layers(core.runner.decoder, core.config, merged, FORMS[core.placement.quantization])


def judge(merged: torch.Tensor, unmerged: torch.Tensor, truth: torch.Tensor) -> Parity:
    """Compare. Raises ParityError with the figures."""
    after, before = distance(merged, truth), distance(unmerged, truth)
    parity = Parity(after.rel_l2, before.rel_l2, after.same_argmax, after.positions)
    if not parity.merged <= max(MERGED_FACTOR * parity.unmerged, EXACT):
        raise ParityError(
            f"the merged adapter fails parity on {parity.positions} positions of the probe set: relative L2 of logits "
            f"{parity.merged:.3g} from the model in fp32, the unmerged engine's is {parity.unmerged:.3g}, allowed are "
            f"{MERGED_FACTOR} times that; same best token at {parity.same_argmax:.1%}"
        )
    return parity
