"""What the rounding of the base to 8 bits does to each adapter, found out beside the engine's steps. Used by loop.py.

The plain model reads the probe set twice, with the published weights and with the same rounded, both with the adapter
as it is resident. A layer takes two or three milliseconds on a GPU and runs between two steps, as soon as a thread has
brought its weights; the first answer for a digest is kept.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from lorafleet_engine.layers.weight import DenseWeight, make_fp8
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import AdapterChecked, LoopConfig, Quality, VersionKey
from lorafleet_engine.model.weights import SafetensorsSource, WeightSource
from lorafleet_engine.quality.layers_ahead import LayersAhead
from lorafleet_engine.quality.probes import Probes, compared, distance, usable_probes
from lorafleet_engine.quality.reference import PlainModel
from lorafleet_engine.runner.assembly import EngineCore


class QualityChecker:
    """Takes versions one after another. Belongs to the loop's thread."""

    def __init__(self, core: EngineCore, source: WeightSource, probes: Probes) -> None:
        self._core = core
        self._probes = probes
        decoder, device = core.runner.decoder, core.placement.device
        kept = {"model.embed_tokens.weight": decoder.embedding, "model.norm.weight": decoder.norm.weight}
        kept["lm_head.weight"] = decoder.head
        self._layers = LayersAhead(source, core.config.shape, kept, device)
        forms = (make_fp8, DenseWeight)
        self._arms = [PlainModel(core.config, self._layers, device, core.placement.dtype, form) for form in forms]
        self._wanted: list[VersionKey] = []
        self._known: dict[str, Quality] = {}
        self._check: Iterator[AdapterChecked | None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a check waits or is under way, so that poll should be called soon."""
        return bool(self._wanted) or self._check is not None

    def want(self, key: VersionKey) -> None:
        """Check a version that has become resident."""
        self._wanted.append(key)

    def poll(self) -> list[AdapterChecked]:
        """Go on by one layer at most; the answer of a check that has ended. Never waits for weights."""
        if self._check is None:
            if not self._wanted:
                return []
            self._check = self._run(self._wanted.pop(0))
        answer = next(self._check, None)
        if answer is None:
            return []
        self._check = None
        return [answer]

    def _run(self, key: VersionKey) -> Iterator[AdapterChecked | None]:
        digest = key.partition("@")[2]
        resident = self._core.residency.get(key)
        if digest not in self._known and resident is not None:
            yield from self._read_probes(key, digest, resident)
        if digest in self._known:
            yield AdapterChecked(key, self._known[digest])
        self._check = None

    def _read_probes(self, key: VersionKey, digest: str, resident: Resident) -> Iterator[None]:
        """Leave the answer in `_known`, unless the version goes meanwhile."""
        with torch.inference_mode():
            streams = [arm.embed(self._probes) for arm in self._arms]
        self._layers.bring(0)
        layers = self._core.config.shape.layers
        for layer in range(layers):
            while not self._layers.take():
                yield None
            if self._core.residency.get(key) is not resident:
                self._layers.drop()
                return
            if layer + 1 < layers:
                self._layers.bring(layer + 1)
            with torch.inference_mode():
                matrices = self._core.matrices_of(resident, layer)
                streams = [arm.pass_layer(layer, x, matrices) for arm, x in zip(self._arms, streams, strict=True)]
            yield None
        self._layers.drop()
        with torch.inference_mode():
            ends = [arm.logits(compared(x, self._probes)) for arm, x in zip(self._arms, streams, strict=True)]
        found = distance(*ends)
        self._known[digest] = Quality(found.rel_l2, found.same_argmax, found.positions)


def make_checker(core: EngineCore, settings: LoopConfig) -> QualityChecker | None:
    """The checker of an engine on a quantised base; None where nothing is to be checked. Raises BrokenModelError."""
    probes = usable_probes(settings.probes, settings.max_model_len)
    if settings.quantization == "none" or settings.merge is not None or not probes:
        return None
    source = SafetensorsSource(Path(settings.model_dir), core.placement.device, core.placement.dtype).__enter__()
    return QualityChecker(core, source, probes)
