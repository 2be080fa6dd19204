"""One model over one GPU and over several: how far the logits are apart, and how long a decode step takes.

Run as `python -m lorafleet_engine.bench.tensor_parallel`. Prints a line of JSON for each figure; `--tiny` does the same
with a small model, also on CPUs. Needs torch, numpy and safetensors only, and room for the model's files in `--folder`.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lorafleet_contracts.capacity import rank_unit_parameters
from lorafleet_engine.bench.catalogue import Blob, Catalogue
from lorafleet_engine.bench.engine import RandomSource
from lorafleet_engine.bench.options import TINY
from lorafleet_engine.bench.published import INDEX, publish_random
from lorafleet_engine.bench.session import Session
from lorafleet_engine.bench.workload import QWEN25_7B, prompts
from lorafleet_engine.messages import LoopConfig, StepLimits
from lorafleet_engine.model.config import parse_config
from lorafleet_engine.quality.merging import start_engine
from lorafleet_engine.quality.probes import Distance, distance, engine_logits
from lorafleet_engine.runner.pool import DTYPES

PROMPT = 64
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """What is compared. `parts` are numbers of processes; the first one is what the others are held against."""

    raw: dict[str, Any]
    device: torch.device
    dtype: str
    folder: Path
    parts: tuple[int, ...]
    batches: tuple[int, ...]
    adapters: int
    steps: int
    memory_bytes: int | None

    @property
    def source(self) -> RandomSource:
        """The weights."""
        return RandomSource(self.device, DTYPES[self.dtype])

    def settings(self, parts: int) -> LoopConfig:
        """The engine over so many processes."""
        return LoopConfig(
            model_dir=str(self.folder / "model"),
            device="cuda" if self.device.type == "cuda" else "cpu",
            dtype="bfloat16" if self.dtype == "bfloat16" else "float32",
            max_model_len=PROMPT + self.steps + 2,
            memory_bytes=None if self.memory_bytes is None else parts * self.memory_bytes,
            utilization_percent=50,
            limits=StepLimits(tokens=1024, sequences=max(self.batches)),
            tensor_parallel=parts,
        )


def main(arguments: list[str] | None = None) -> int:
    """Run every number of processes and print the lines. Returns the exit status."""
    trial, complete = _trial(arguments), True
    blobs = _files(trial)
    seen: dict[str, torch.Tensor] = {}
    for parts in trial.parts:
        try:
            _run(trial, parts, blobs, seen)
        except Exception as error:  # noqa: BLE001  (what the others gave is still worth its lines)
            complete = False
            _tell(parts=parts, error=f"{type(error).__name__}: {error}")
        gc.collect()
        if trial.device.type == "cuda":
            torch.cuda.empty_cache()
    return 0 if complete else 1


def _files(trial: Trial) -> list[Blob]:
    """Write the model, unless it is there, and the adapters."""
    began = time.perf_counter()
    if not (trial.folder / "model" / INDEX).exists():
        publish_random(trial.folder / "model", trial.raw, trial.source)
    catalogue = Catalogue(parse_config(trial.raw, {}), trial.source, trial.folder / "blobs")
    blobs = catalogue.take(range(trial.adapters))
    _tell(what="files", seconds=round(time.perf_counter() - began, 1))
    return blobs


@contextmanager
def _engine(trial: Trial, parts: int) -> Iterator[Session]:
    began = time.perf_counter()
    core = start_engine(trial.settings(parts))
    try:
        unit = rank_unit_parameters(core.config.shape, tensor_parallel=parts) * core.geometry.dtype_bytes
        session = Session(core, unit)
        _tell(parts=parts, what="start", seconds=round(time.perf_counter() - began, 1), budget=str(core.plan.budget))
        yield session
    finally:
        core.close()


def _run(trial: Trial, parts: int, blobs: Sequence[Blob], seen: dict[str, torch.Tensor]) -> None:
    """Logits on the base and on every adapter, then times."""
    with _engine(trial, parts) as session:
        began = time.perf_counter()
        session.keep(blobs)
        _tell(parts=parts, what="loads", adapters=len(blobs), ms=round((time.perf_counter() - began) * 1e3, 1))
        vocab = session.core.config.shape.vocab
        probes = tuple(map(tuple, prompts(4, PROMPT, 7, vocab=min(vocab, 151000))))
        for name, blob in {"base": None, **{f"r{blob.rank}": blob for blob in blobs}}.items():
            resident = None if blob is None else session.core.residency.acquire(blob.key)
            logits = engine_logits(session.core, probes, resident)
            if resident is not None:
                session.core.residency.release(resident)
            first = seen.setdefault(name, logits)
            _tell(parts=parts, what="logits", of=name, **_apart(distance(logits, first), logits, first))
        for rows in trial.batches:
            for used in ((), tuple(blobs)):
                times = _decode_ms(trial, session, rows, used)
                ms, repeats = statistics.median(times), [round(each, 4) for each in times]
                _tell(
                    parts=parts, what="decode", batch=rows, adapters=len(used[:rows]), ms=round(ms, 4), repeats=repeats
                )


def _apart(found: Distance, logits: torch.Tensor, first: torch.Tensor) -> dict[str, float]:
    largest = float((logits.float() - first.float()).abs().max())
    return {"rel_l2": found.rel_l2, "same_argmax": found.same_argmax, "largest": largest}


def _decode_ms(trial: Trial, session: Session, rows: int, used: Sequence[Blob]) -> list[float]:
    """Milliseconds per step through the generate path, of each repeat, as bench/bench.py takes them."""
    vocab = min(151000, session.core.config.shape.vocab)
    per_row = [used[row % len(used)] if used else None for row in range(rows)]

    def seconds(seed: int, answer: int) -> float:
        drawn = prompts(rows, PROMPT, seed, vocab=vocab)
        return session.run([session.requests(drawn, per_row, answer)]).seconds

    def measure(seed: int) -> float:
        first = seconds(seed, 1)
        return (seconds(seed, trial.steps + 1) - first) / trial.steps * 1e3

    measure(1)
    return [measure(seed) for seed in range(2, 2 + REPEATS)]


def _tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def _trial(arguments: list[str] | None) -> Trial:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a small model, for a quick look or CPUs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--parts", default="1,2")
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--steps", type=int, default=64, help="decode steps timed in each case")
    parser.add_argument("--folder", type=Path, required=True, help="15 GB and the adapters' bytes are written there")
    given = parser.parse_args(arguments)
    parts, batches = (tuple(int(number) for number in text.split(",")) for text in (given.parts, given.batches))
    small = {**TINY.overrides, "num_attention_heads": 8, "num_key_value_heads": 4} if given.tiny else {}
    return Trial(
        raw={**QWEN25_7B, **small},
        device=torch.device(given.device),
        dtype=given.dtype,
        folder=given.folder,
        parts=parts,
        batches=batches,
        adapters=given.adapters,
        steps=given.steps,
        memory_bytes=TINY.memory_bytes if given.tiny else None,
    )


if __name__ == "__main__":
    sys.exit(main())
