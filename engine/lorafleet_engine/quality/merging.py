"""Starts an engine with one adapter merged into its weights, after comparing both on the probe set. Called by loop.py.

The reference runs first and alone, so that no two of model, pool and reference need memory at the same time; then the
engine answers unmerged, its weights are overwritten layer by layer, and it answers again.
"""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from lorafleet_contracts.probe import MERGED_EXACT, MERGED_FACTOR, PARITY_FAILED
from lorafleet_engine.errors import EngineError, ParityError
from lorafleet_engine.memory.geometry import blob_bytes
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import BlobRef, LoopConfig, MergeConfig, Parity
from lorafleet_engine.model.config import ModelConfig, read_config
from lorafleet_engine.model.merged import Matrices, MergedSource, of_layer, read_floats, unpack_blob
from lorafleet_engine.model.weights import SafetensorsSource, WeightSource
from lorafleet_engine.parallel.gang import Lost, ignore
from lorafleet_engine.parallel.start import start_team
from lorafleet_engine.quality.probes import Probes, distance, engine_logits, plain_logits, usable_probes
from lorafleet_engine.quality.reference import PlainModel
from lorafleet_engine.runner.assembly import EngineCore, overwrite_weights, start_core
from lorafleet_engine.runner.team import Team

UNRELATED = 0.9
"""Relative L2 from which on logits have nothing to do with the model's, whatever the unmerged ones are."""
KEY = "merged"
ARRIVAL_POLL_S = 0.002


def start_engine(settings: LoopConfig, lost: Lost = ignore) -> EngineCore:
    """Assemble the engine that `settings` describe, over several processes or alone, merged or not. Raises what these
    ways raise. `lost` see start_team."""
    start = partial(start_team, settings, lost) if settings.tensor_parallel > 1 else partial(start_core, settings)
    return start() if settings.merge is None else start_merged(settings, settings.merge, start)


def start_merged(settings: LoopConfig, merge: MergeConfig, start: Callable[[], EngineCore]) -> EngineCore:
    """Assemble the engine and merge. Raises what start_core raises, and ParityError with the figures."""
    torch.set_num_threads(settings.threads)
    config = read_config(Path(settings.model_dir))
    probes = usable_probes(settings.probes, settings.max_model_len)
    if not probes:
        raise ParityError("no probe is long enough to compare the merged adapter on")
    data = read_floats(merge.blob)
    with SafetensorsSource(Path(settings.model_dir), torch.device(settings.device), torch.float32) as source:
        matrices = unpack_blob(data, merge.blob.module_ranks, config.shape)
        truth = reference_logits(config, source, matrices, probes)
        core = start()
        try:
            unmerged = unmerged_logits(core, data, merge, probes)
            if core.team is not None:
                core.team.merge(merge.blob)
            merge_weights(core, source, matrices)
            return replace(core, parity=judge(engine_logits(core, probes, None), unmerged, truth))
        except BaseException:
            core.close()
            raise


def reference_logits(config: ModelConfig, source: WeightSource, matrices: Matrices, probes: Probes) -> torch.Tensor:
    """What the model in fp32 says with the adapter. `source` gives fp32 on the device that is to compute."""
    device = source.get("model.norm.weight", (config.shape.hidden,)).device
    model = PlainModel(config, source, device, torch.float32)
    return plain_logits(model, probes, partial(of_layer, matrices)).cpu()


def unmerged_logits(core: EngineCore, data: torch.Tensor, merge: MergeConfig, probes: Probes) -> torch.Tensor:
    """What the engine says with the adapter resident beside its base, as a shared engine would; it is gone afterwards.

    Raises DoesNotFitError.
    """
    blob, ranks = data.to(core.placement.dtype), merge.blob.module_ranks
    size = blob_bytes(core.geometry, ranks)
    resident = core.residency.place(KEY, size, core.geometry.pages_of(ranks), merge.blob.rank)
    if core.team is None:
        core.runner.pool.install(resident, blob, ranks)
    else:
        _install_everywhere(core, core.team, resident, (blob, merge.blob))
    logits = engine_logits(core, probes, resident)
    core.residency.remove(KEY)
    return logits


def _install_everywhere(core: EngineCore, team: Team, resident: Resident, data: tuple[torch.Tensor, BlobRef]) -> None:
    """Bring the data, which is like a packed file in another dtype, to every device, and wait. Raises EngineError."""
    blob, like = data
    copier = team.copier(core.runner.pool, core.config.shape)
    with tempfile.NamedTemporaryFile(prefix="lorafleet-") as file:
        file.write(blob.view(torch.uint8).numpy().data)
        file.flush()
        dtype: Literal["float32", "bfloat16"] = "bfloat16" if blob.dtype == torch.bfloat16 else "float32"
        packed = replace(like, path=file.name, bytes=blob.numel() * blob.element_size(), dtype=dtype)
        copier.submit(resident, packed, os.dup(file.fileno()))
        while not (arrived := copier.poll()):
            time.sleep(ARRIVAL_POLL_S)
    if arrived[0].error:
        raise EngineError(f"the adapter to merge does not come to every device: {arrived[0].error}")


def merge_weights(core: EngineCore, source: WeightSource, matrices: Matrices) -> None:
    """Overwrite the core's weights by those with the adapter. `source` gives the base in fp32."""
    overwrite_weights(core, MergedSource(source, matrices, core.placement.dtype))


def judge(merged: torch.Tensor, unmerged: torch.Tensor, truth: torch.Tensor) -> Parity:
    """Compare. Raises ParityError with the figures."""
    after, before = distance(merged, truth), distance(unmerged, truth)
    parity = Parity(after.rel_l2, before.rel_l2, after.same_argmax, after.positions)
    if not parity.merged <= min(max(MERGED_FACTOR * parity.unmerged, MERGED_EXACT), UNRELATED):
        raise ParityError(
            f"the merged adapter {PARITY_FAILED} on {parity.positions} positions of the probe set: relative L2 of "
            f"logits {parity.merged:.3g} from the model in fp32, the unmerged engine's is {parity.unmerged:.3g}, "
            f"allowed are {MERGED_FACTOR} times that; same best token at {parity.same_argmax:.1%}"
        )
    return parity
