"""The GPU smoke's script, with a small model on the CPU: its line, its checks and its exit status."""

import json
import subprocess
import sys

import pytest

from lorafleet_engine.bench import smoke
from lorafleet_engine.bench.workload import prompts, zipf_ids

SMALL = ["--tiny", "--device", "cpu", "--dtype", "float32", "--steps", "2", "--batches", "1,3", "--adapters", "0,2"]


def test_line_holds_every_case_and_exact_logits(capsys: pytest.CaptureFixture[str]) -> None:
    status = smoke.main(SMALL)
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == 0
    assert record["ok"]
    assert record["complete"]
    assert [(case["batch"], case["adapters"], case["base_rows"]) for case in record["cases"]] == [
        (1, 0, 1),
        (1, 2, 0),
        (3, 0, 3),
        (3, 2, 0),
        (3, 2, 1),
    ]
    assert [case["distinct"] for case in record["cases"]] == [0, 1, 0, 2, 1]
    assert all(case["rel_l2"] < 1e-4 and case["argmax_match"] == 1 for case in record["cases"])


def test_a_failure_is_reported_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    status = smoke.main([*SMALL, "--memory-gb", "1", "--deadline", "0"])
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == 1
    assert record["cases"] == []
    assert not record["complete"]


def test_requests_never_change() -> None:
    assert prompts(2, 3) == [[43667, 118052, 96039], [97739, 42093, 122679]]
    assert zipf_ids(8, 10, 1.0) == [2, 4, 2, 2, 1, 3, 1, 7]


def test_needs_neither_pydantic_nor_a_server() -> None:
    """The GPU machine has torch, numpy and safetensors only."""
    code = "import sys; import lorafleet_engine.bench.smoke; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert not {"pydantic", "starlette", "uvicorn", "orjson", "httpx", "jinja2"} & set(loaded.stdout.split())


def environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(path for path in sys.path if path)}
