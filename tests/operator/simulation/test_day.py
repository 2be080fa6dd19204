import json
from pathlib import Path

import pytest

from lorafleet_operator.simulation.day import main


@pytest.mark.heavy
def test_the_first_minutes_of_the_day(tmp_path: Path) -> None:
    chart, figures = tmp_path / "day.svg", tmp_path / "day.json"
    assert main(["--chart", str(chart), "--figures", str(figures), "--hours", "0.1"]) == 0
    told = json.loads(figures.read_text())
    assert told["requests"] > 1000
    assert told["cold_load_share"].keys() == {"ours", "hash", "all"}
    assert told["unserved_share"] == 0.0
    assert chart.read_text().startswith("<svg")
