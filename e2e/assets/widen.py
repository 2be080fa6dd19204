"""Writes a trained adapter again with a larger rank: the same answers, at the cost of many ranks.

The tests of rank classes run it in the demo-assets image (`python3 -c ... SOURCE NAME RANK`), which has the files and
nothing but the standard library.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

ADAPTERS = Path("/srv/assets/adapters")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_NUMBER_BYTES = 4


def widen(source: Path, target: Path, rank: int) -> None:
    """Fill the matrices of a float32 adapter of one rank up with zeros, and keep what it is scaled by."""
    config = json.loads((source / CONFIG).read_text())
    old = int(config["r"])
    target.mkdir(exist_ok=True)
    scaled = config | {"r": rank, "lora_alpha": config["lora_alpha"] * rank // old}
    (target / CONFIG).write_text(json.dumps(scaled, indent=2))
    with (source / WEIGHTS).open("rb") as found:
        head = int.from_bytes(found.read(8), "little")
        tensors, data = json.loads(found.read(head)), found.read()
    kept = {"__metadata__": tensors.pop("__metadata__", {})}
    end = 0
    for name, told in tensors.items():
        rows, columns = told["shape"]
        shape = [rank, columns] if name.endswith("lora_A.weight") else [rows, rank]
        size = shape[0] * shape[1] * _NUMBER_BYTES
        kept[name] = {"dtype": told["dtype"], "shape": shape, "data_offsets": [end, end + size]}
        end += size
    words = json.dumps(kept).encode()
    with (target / WEIGHTS).open("wb") as made:
        made.write(len(words).to_bytes(8, "little") + words)
        for name, told in tensors.items():
            begin, stop = told["data_offsets"]
            made.write(_fill(data[begin:stop], told["shape"], kept[name]["shape"]))


def _fill(data: bytes, old: Sequence[int], new: Sequence[int]) -> bytes:
    """A matrix in rows, with zeros below it and to its right."""
    width, more = old[1] * _NUMBER_BYTES, bytes((new[1] - old[1]) * _NUMBER_BYTES)
    rows = b"".join(data[row * width : (row + 1) * width] + more for row in range(old[0]))
    return rows + bytes((new[0] - old[0]) * new[1] * _NUMBER_BYTES)


if __name__ == "__main__":
    widen(ADAPTERS / sys.argv[1], ADAPTERS / sys.argv[2], int(sys.argv[3]))
