"""The comparison of one process with several prints its figures, with a small model on the CPU."""

import json
from pathlib import Path

import pytest

from lorafleet_engine.bench import tensor_parallel


@pytest.mark.heavy
def test_prints_distances_and_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--tiny --device cpu --dtype float32 --batches 1,3 --adapters 2 --steps 2 --folder"
    status = tensor_parallel.main([*given.split(), str(tmp_path)])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == 0, lines
    assert {line["parts"] for line in lines if line.get("what") == "decode"} == {1, 2}
    assert all(line["largest"] <= 1e-4 for line in lines if line.get("what") == "logits")
