"""The part `classes` with a tiny model on the CPU: what its record holds. Times mean nothing there."""

from pathlib import Path

import pytest

from lorafleet_engine.bench.bench import Bench
from lorafleet_engine.bench.options import TINY, Options
from lorafleet_engine.bench.parts import classes

pytestmark = pytest.mark.heavy


def test_one_record_foretells_both_ways_of_sharing(tmp_path: Path) -> None:
    options = Options(
        records=tmp_path / "records",
        sources=tmp_path,
        disk=tmp_path,
        dims=TINY,
        device="cpu",
        repeats=1,
        budget_s=60.0,
        utilization_percent=90,
        commit="x",
    )
    [case] = classes.cases(Bench(options))
    record = case.run()
    assert record["ranks"] == {"8": 3, "16": 2}
    for arm in ("mixed", "split"):
        found = record[arm]
        assert found["gaps"] > 0
        assert found["forecast_p99_ms"] >= found["forecast_mean_ms"] >= record["base_ms"]
    assert record["mixed"]["forecast_rank_sum"] > record["split"]["forecast_rank_sum"]
    assert record["mixed"]["forecast_mean_ms"] == pytest.approx(record["mixed"]["mean_ms"], rel=1e-3)
