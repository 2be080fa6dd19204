"""What a server of the benchmark is started from: the workload's model as a checkpoint in memory. Used by parts/."""

import importlib
import importlib.util
from typing import Any

from lorafleet_engine.bench.bench import Bench
from lorafleet_engine.bench.checkpoint import write_checkpoint
from lorafleet_engine.bench.engine import RandomSource
from lorafleet_engine.bench.session import BenchError

NAME = "model"
NEEDED = ("uvicorn", "uvloop", "httptools", "orjson", "pydantic", "starlette", "tokenizers", "jinja2")


def prepared_server(bench: Bench, **settings: str) -> tuple[Any, Any]:
    """The module that starts servers, and the plan of one; `settings` are LORAFLEET_* without the prefix.

    Raises BenchError where its libraries are missing.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise BenchError(f"the server needs {name}, which is not installed here")
    child = importlib.import_module("lorafleet_engine.bench.server_child")
    options, dims = bench.options, bench.dims
    root = options.sources / f"{dims.name}-server"
    write_checkpoint(root / "volumes" / "models" / NAME, bench.raw, RandomSource(bench.device, bench.dtype))
    every = {
        "DEVICE": bench.device.type,
        "DTYPE": dims.dtype,
        "MAX_MODEL_LEN": str(dims.window),
        "GPU_UTILIZATION_PERCENT": "92",
        "HOST_CACHE_BYTES": str(1 << 30),
        "CPU_THREADS": "1",
        "PREFIX_CACHE": "off",
    }
    if dims.memory_bytes is not None:
        every["MEMORY_BYTES"] = str(dims.memory_bytes)
    return child, child.ServerPlan(root / "volumes", NAME, options.sources / "server-work", every | settings)
