"""`make gpu-smoke`: decode steps of the 7B shape on one GPU, timed, and their logits checked against a plain model.

Run as `python -m lorafleet_engine.bench.smoke`. Prints one line of JSON as its last line and exits non-zero when any
case failed or its logits are off. Everything goes through the engine's scheduler, memory and runner, whose decode steps
are CUDA graphs. The bfloat16 pass is the one that counts for speed; a short fp32 pass shows that its error is rounding.
`--tiny` does the same with a small model, also on a CPU. Needs torch, numpy and safetensors only.
"""

import argparse
import datetime
import gc
import json
import sys
import time
from dataclasses import replace
from typing import Any

import torch

from lorafleet_engine.bench.cases import Settings, run_cases

EXACT_STEPS = 8


def main(arguments: list[str] | None = None) -> int:
    """Run all passes within the deadline and print the line. Returns the exit status."""
    passes = _passes(arguments)
    started = time.monotonic()
    device = passes[0].device
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "shape": "tiny" if passes[0].tiny else "qwen2.5-7b",
        "cases": [],
        "errors": [],
        "skipped": [],
    }
    for settings in passes:
        _run_pass(settings, started, record)
    record["seconds"] = round(time.monotonic() - started, 1)
    expected = sum(len(settings.cases) for settings in passes) - sum(skip["cases"] for skip in record["skipped"])
    record["complete"] = len(record["cases"]) == expected
    record["ok"] = not record["errors"] and all(case["ok"] for case in record["cases"])
    print(json.dumps(record), flush=True)
    return 0 if record["ok"] and record["complete"] else 1


def _run_pass(settings: Settings, started: float, record: dict[str, Any]) -> None:
    """Add a pass's cases to the record, or why it was skipped, or the error that ended it."""
    gc.collect()
    if settings.device.type == "cuda":
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(settings.device)
        if free < settings.memory:
            reason = f"{settings.dtype} pass: {settings.memory} bytes needed, {free} free"
            record["skipped"].append({"cases": len(settings.cases), "reason": reason})
            return
    try:
        for case in run_cases(settings, started):
            print(json.dumps(case), file=sys.stderr, flush=True)
            record["cases"].append(case)
    except Exception as error:  # noqa: BLE001  (what was measured so far is still worth its line)
        record["errors"].append(f"{settings.dtype} pass: {type(error).__name__}: {error}")


def _passes(arguments: list[str] | None) -> list[Settings]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a small model, for a quick look or a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="both", choices=["both", "bfloat16", "float32"])
    parser.add_argument("--steps", type=int, default=48, help="decode steps timed in each case")
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--adapters", default="0,8,32")
    parser.add_argument("--memory-gb", type=float, default=48.0, help="for bfloat16; float32 takes twice as much")
    parser.add_argument("--deadline", type=float, default=220.0, help="seconds after which no case is started")
    given = parser.parse_args(arguments)
    batches, adapters = ([int(number) for number in text.split(",")] for text in (given.batches, given.adapters))
    full = Settings(
        tiny=given.tiny,
        device=torch.device(given.device),
        dtype=torch.bfloat16,
        cases=_cases(batches, adapters),
        context=40 if given.tiny else 200,
        steps=given.steps,
        memory=int(1e9 if given.tiny else given.memory_gb * 1e9),
        deadline_s=given.deadline,
    )
    exact = replace(full, dtype=torch.float32, memory=2 * full.memory)
    if given.dtype != "both":
        return [full if given.dtype == "bfloat16" else exact]
    ends = sorted({min(adapters), max(adapters)})
    return [full, replace(exact, cases=_cases(batches[:2], ends), steps=min(given.steps, EXACT_STEPS))]


def _cases(batches: list[int], adapters: list[int]) -> tuple[tuple[int, int, bool], ...]:
    """Every batch with every number of adapters, and one batch half of whose rows stay on the base."""
    cases = [(batch, count, False) for batch in batches for count in adapters]
    if len(batches) > 1 and max(adapters):
        cases.append((batches[1], max(adapters), True))
    return tuple(cases)


if __name__ == "__main__":
    sys.exit(main())
