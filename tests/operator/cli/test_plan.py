"""`lorafleet plan` as it is called."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lorafleet_operator.cli.plan import register
from tests.support.commands import run_command
from tests.support.team_manifests import POOL, write_teams


def run(*arguments: object) -> int:
    return run_command(register, "plan", *arguments)


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert run(*arguments, "-o", "json") == 0
    decoded: dict[str, Any] = json.loads(capsys.readouterr().out)
    return decoded


SHORT = ("--rps", "2", "--hours", "0.2", "--capacity-rps", "10", "--penalty", "0.2")


def test_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = planned(capsys, "-f", write_teams(tmp_path), *SHORT)
    assert told["pool"] == "serving/qwen"
    assert told["gpus_dedicated"] == 3
    assert told["requests"] == 1440
    assert told["replica"] == {"requests_per_s": 8.0, "source": "Given"}
    assert told["cold_load_share"] == told["unserved_share"] == 0.0
    assert told["refused"] == []
    assert told == planned(capsys, "-f", tmp_path, *SHORT)


def test_a_table_for_people_says_what_is_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_teams(tmp_path, base="novel-model")
    assert run("-f", folder, "--hours", "0.1", "--rps", "1") == 0
    printed = capsys.readouterr().out
    assert "GPUs needed" in printed
    assert "the shape of novel-model is not known; qwen2.5-7b is assumed (--model-config)" in printed
    assert "(--capacity-rps)" in printed
    assert "a replica's GPU is an H200 of 141 GB (--gpu)" in printed
    assert "rank 16 for 3 adapters" in printed


def test_more_gpus_than_allowed_fail_a_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_teams(tmp_path)
    assert run("-f", folder, *SHORT, "--max-gpus", "100") == 0
    capsys.readouterr()
    assert run("-f", folder, *SHORT, "--max-gpus", "1") == 1
    assert "pool serving/qwen needs 2 GPUs, 1 more than --max-gpus 1" in capsys.readouterr().err


def test_what_the_pool_refuses_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_teams(tmp_path)
    text = (folder / "all.yaml").read_text().replace("http://assets/01", "http://elsewhere/01")
    (folder / "all.yaml").write_text(text)
    told = planned(capsys, "-f", folder, *SHORT)
    assert [each["adapter"] for each in told["refused"]] == ["team-01/tuned"]
    assert told["refused"][0]["reason"].startswith("SourceNotAllowed")
    assert 0 < told["unserved_share"] < 1


def test_a_trace_gives_the_rate_and_the_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:{second // 60:02d}:{second % 60:02d}.5,100,50" for second in range(600)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows))
    told = planned(capsys, "-f", write_teams(tmp_path), "--trace", trace)
    assert told["requests"] == 600
    trace.write_text("time,tokens\n1,2\n")
    assert run("-f", tmp_path, "--trace", trace) == 1
    assert "line 2: column TIMESTAMP is missing" in capsys.readouterr().err


def test_ranks_and_shapes_come_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_teams(tmp_path, base="novel-model")
    ranks, config = tmp_path / "ranks.csv", tmp_path / "config.json"
    ranks.write_text("team-00/tuned,64\nteam-01/tuned,8\nteam-02/tuned,8\n")
    config.write_text(
        json.dumps(
            {
                "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
                "vocab_size": 1000,
            }
        )
    )  # fmt: skip
    told = planned(capsys, "-f", folder, *SHORT, "--ranks", ranks, "--model-config", config)
    assert not [each for each in told["assumptions"] if "rank 16" in each or "novel-model" in each]
    ranks.write_text("tuned,64\n")
    assert run("-f", folder, *SHORT, "--ranks", ranks) == 1
    assert "line 1: 'tuned,64' is not NAMESPACE/NAME,RANK" in capsys.readouterr().err
    config.write_text("{}")
    assert run("-f", folder, *SHORT, "--model-config", config) == 1
    assert "num_attention_heads" in capsys.readouterr().err


def test_a_base_that_can_t_fit_is_an_answer_with_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_teams(tmp_path, base="llama-3.1-70b")
    assert run("-f", folder, *SHORT, "--gpu", "l4") == 1
    assert "the base model needs" in capsys.readouterr().err


def test_nobody_who_may_call_anything_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    assert run("-f", tmp_path, *SHORT) == 1
    assert "no Tenant of this pool may call" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--rps=0", "--zipf=-1", "--penalty=1", "--penalty=0.155", "--hours=never"])
def test_bad_numbers_are_usage_errors(option: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        run("-f", tmp_path, option)
    assert caught.value.code == 2


def test_one_page_that_loads_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "plan.html"
    assert run("-f", write_teams(tmp_path), *SHORT, "--report", page) == 0
    text = page.read_text()
    assert text.count("<svg") == 1
    assert "GPUs with a replica for each tenant" in text
    assert "<script" not in text
    addresses = re.findall(r"(?:src|href)=[\"']?([^\"'> ]+)", text)
    assert all(each.startswith("#") for each in addresses)
    again = tmp_path / "again.html"
    assert run("-f", tmp_path, *SHORT, "--report", again) == 0
    assert again.read_text() == text
    assert run("-f", tmp_path, *SHORT, "--report", tmp_path / "absent" / "x.html") == 1
    assert "absent" in capsys.readouterr().err


def test_it_needs_the_operator_s_extra_and_nothing_else() -> None:
    others = ("torch", "triton", "matplotlib", "grpc", "uvicorn", "starlette")
    code = f"import sys, lorafleet_operator.cli.plan; sys.exit(any(name in sys.modules for name in {others}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
