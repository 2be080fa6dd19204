"""What a run of `lorafleet bench engine` is asked to do, and the sizes of its cases. Built by command.py; torch-free.

FULL is the workload that the rivals ran; TINY runs every part on a CPU in seconds and measures nothing.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

DType = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Dims:
    """Sizes in tokens, sequences and adapters. `long` are (batch, context) of base decodes; `memory_bytes` None means
    the device's, by utilisation; `batch_tokens` are those of a step where batches are timed alone: enough that prompts
    take as many steps beside answers that have begun as without. Sequences may come to `window`, or `long_window`.
    `chunk` is the prompt that comes beside running decodes, of which a step takes `chunk_tokens`; `streams` those of
    the server, read by `clients` processes; `open_requests` come in an open loop, for `open_answer` tokens each."""

    name: str
    overrides: dict[str, int]
    dtype: DType
    memory_bytes: int | None
    catalogue: int
    batches: tuple[int, ...]
    prompt: int
    decode_steps: int
    distinct: tuple[int, ...]
    long: tuple[tuple[int, int], ...]
    prefill_batches: tuple[int, ...]
    requests: int
    request_prompt: int
    request_answer: int
    sweep_caps: tuple[int, ...]
    step_tokens: int
    batch_tokens: int
    beside: int
    loads: int
    chunk: int
    chunk_tokens: int
    window: int
    long_window: int
    streams: int
    clients: int
    open_requests: int
    open_answer: int


FULL = Dims(
    name="qwen2.5-7b",
    overrides={},
    dtype="bfloat16",
    memory_bytes=None,
    catalogue=200,
    batches=(1, 16, 64, 256),
    prompt=128,
    decode_steps=128,
    distinct=(1, 8, 32),
    long=((64, 4096), (1, 32000)),
    prefill_batches=(64, 256),
    requests=512,
    request_prompt=256,
    request_answer=128,
    sweep_caps=(4, 8, 16, 32, 128),
    step_tokens=2048,
    batch_tokens=4352,
    beside=64,
    loads=100,
    chunk=8192,
    chunk_tokens=64,
    window=4096,
    long_window=32768,
    streams=256,
    clients=4,
    open_requests=5000,
    open_answer=64,
)
TINY = Dims(
    name="tiny",
    overrides={
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
    dtype="float32",
    memory_bytes=256 << 20,
    catalogue=24,
    batches=(1, 4),
    prompt=8,
    decode_steps=4,
    distinct=(1, 4),
    long=((2, 40),),
    prefill_batches=(4,),
    requests=8,
    request_prompt=12,
    request_answer=4,
    sweep_caps=(2, 8),
    step_tokens=64,
    batch_tokens=64,
    beside=3,
    loads=6,
    chunk=200,
    chunk_tokens=24,
    window=64,
    long_window=256,
    streams=4,
    clients=2,
    open_requests=30,
    open_answer=4,
)


@dataclass(frozen=True, slots=True)
class Options:
    """`records`: the JSON-lines file; `sources`: a folder in memory (tmpfs) for adapters' files; `disk`: a folder on a
    real disk; `budget_s`: no case is started after so many seconds."""

    records: Path
    sources: Path
    disk: Path
    dims: Dims
    device: str
    repeats: int
    budget_s: float
    utilization_percent: int
    commit: str

    def settings(self) -> dict[str, Any]:
        """What makes figures comparable: a finished case counts as finished under these settings only."""
        return {
            "shape": self.dims.name,
            "dtype": self.dims.dtype,
            "repeats": self.repeats,
            "utilization_percent": self.utilization_percent,
            "commit": self.commit,
            "sizes": {name: value for name, value in asdict(self.dims).items() if name not in ("name", "overrides")},
        }
