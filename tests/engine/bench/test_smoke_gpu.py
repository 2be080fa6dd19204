"""The smoke with a small model on a real GPU: decode steps are graphs, and equal the eager step bit for bit."""

import json

import pytest

from lorafleet_engine.bench import smoke

pytestmark = pytest.mark.gpu


def test_graphs_give_the_eager_logits(capsys: pytest.CaptureFixture[str]) -> None:
    status = smoke.main(["--tiny", "--device", "cuda", "--steps", "3", "--batches", "1,5,16", "--adapters", "0,1,8,32"])
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert status == 0, record
    assert all(case["graph_equals_eager"] for case in record["cases"])
