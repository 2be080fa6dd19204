"""`lorafleet bench serve` against a server over HTTP whose delays are known: figures, refusals, faults, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lorafleet_engine.bench.command import main
from tests.support.openai_double import BASE, Double, running_double

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).resolve().parents[4]
QUICK = ["--requests", "60", "--answer", "4", "--saturation-requests", "24", "--streams", "8", "--quiet"]
Start = Callable[[Double], Double]
Serve = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda double: stack.enter_context(running_double(double))


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Run the command; its status and its document (empty when none was written)."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    out = tmp_path / "found" / "figures.json"

    def run(url: str, *more: str) -> tuple[int, dict[str, Any]]:
        status = main(["serve", "--url", url, *QUICK, "--out", str(out), *more])
        document: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        return status, document

    return run


def phase(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in document["phases"] if each["name"] == name]
    return found


def test_known_delays_come_out(start: Start, serve: Serve) -> None:
    """120 ms to the first token, 30 ms between tokens; the machine may only add to them."""
    double = start(Double(first_s=0.12, gap_s=0.03))
    status, document = serve(double.url, "--rate", "20", "--slo-ttft", "5000", "--slo-itl", "2000")

    assert status == 0
    for name in ("base", "zipf 1, cold", "zipf 1, warm", "zipf 0.1, warm"):
        found = phase(document, name)
        assert 120 <= found["ttft_ms"]["p50"] < 1000, found["ttft_ms"]
        assert 20 <= found["itl_ms"]["p50"] < 500, found["itl_ms"]
        assert (found["requests"], found["errors"], found["in_slo_share"]) == (60, {}, 1.0)
        assert (found["answer_tokens"], found["prompt_tokens"]) == (4.0, 256.0)
        assert found["rate"] == pytest.approx(20, rel=0.1)
    assert [each["name"] for each in document["phases"][:2]] == ["base, saturation", "zipf 1, cold"]
    assert len(document["penalty"]) == 2


def test_rare_adapters_that_are_slow_show_in_their_deciles_only(start: Start, serve: Serve) -> None:
    double = Double(first_s=0.01)
    rare = double.names()[-2:]
    start(double).slow.update(dict.fromkeys(rare, 0.6))
    _, document = serve(double.url, "--rate", "40", "--zipf", "0", "--zipf", "0.1", "--slo-ttft", "500")
    found = phase(document, "zipf 0, warm")

    assert found["by_decile"]["10"]["ttft_ms"]["p50"] >= 600
    assert found["by_decile"]["10"]["in_slo"] == 0
    assert found["by_decile"]["1"]["ttft_ms"]["p50"] < 500
    assert {name for name, each in found["by_adapter"].items() if each["ttft_ms"]["p50"] >= 600} <= set(rare)
    assert found["in_slo"] == found["requests"] - found["by_decile"]["10"]["requests"]


def test_a_server_that_stalls_is_not_waited_for(start: Start, serve: Serve) -> None:
    """Requests that were due while it stood still count from then: a client that waited would hide them."""
    double = start(Double(stall_s=1.2))
    _, document = serve(double.url, "--rate", "40", "--saturation-requests", "1", "--streams", "1")
    stalled = phase(document, "zipf 1, cold")

    late = stalled["requests"] * 0.2
    assert stalled["ttft_ms"]["max"] >= 1000
    assert stalled["in_slo"] <= stalled["requests"] - late, "about 40 requests a second were due in 1.2 s"


def test_saturation_is_what_the_slots_allow_and_the_rate_follows(start: Start, serve: Serve) -> None:
    double = start(Double(first_s=0.1, slots=4))
    _, document = serve(double.url, "--load", "0.5", "--streams", "16", "--saturation-requests", "48")

    saturation = phase(document, "zipf 1, saturation")["requests_per_s"]
    assert 15 < saturation <= 40, "four at a time, 0.1 s each"
    assert phase(document, "zipf 1, saturation")["waiting"]["max"] > 4
    slowest = min(each["requests_per_s"] for each in document["penalty"])
    assert phase(document, "zipf 0.1, warm")["rate"] == pytest.approx(slowest * 0.5, rel=0.1)


def test_first_requests_are_told_from_later_ones(start: Start, serve: Serve) -> None:
    _, document = serve(start(Double()).url, "--rate", "60")
    groups = phase(document, "zipf 1, cold")["by_start"]

    assert set(groups) == {"first request", "asked before"}
    assert groups["first request"]["requests"] == len(phase(document, "zipf 1, cold")["by_adapter"])


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        (503, "HTTP 503", "status 503"),
        ("cut", "stream cut", "without"),
        ("garbage", "malformed event", "nonsense"),
        ("error", "error in stream", "out of memory"),
        ("silent", "timeout", "1 s"),
    ],
)
def test_faults_are_counted_by_kind(start: Start, serve: Serve, fault: int | str, kind: str, says: str) -> None:
    double = start(Double(adapters=4))
    double.faults[double.names()[1]] = fault
    status, document = serve(double.url, "--rate", "60", "--timeout", "1")
    found = phase(document, "zipf 1, warm")

    assert status == 0
    assert found["errors"] == {kind: found["by_adapter"]["adapter-001"]["requests"]}
    assert says in found["error_examples"][kind]
    assert found["by_adapter"]["adapter-000"]["errors"] == {}
    assert found["in_slo"] <= found["requests"] - found["errors"][kind]
    assert any(kind in line for line in document["warnings"])


def test_a_server_that_hardly_ever_answers_is_measured_all_the_same(start: Start, serve: Serve) -> None:
    double = start(Double())
    double.faults.update(dict.fromkeys(double.names()[1:], "cut"))
    status, document = serve(double.url, "--rate", "60")

    assert status == 0
    assert phase(document, "zipf 0.1, warm")["errors"]["stream cut"] > 40


def test_a_wrong_key(start: Start, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = serve(start(Double(key="right")).url, "--key", "wrong")

    assert (status, document) == (1, {})
    assert "this key is not known (check --key)" in capsys.readouterr().err


def test_the_key_may_come_from_the_environment(start: Start, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    status, document = serve(start(Double(key="right")).url, "--rate", "60")

    assert status == 0
    assert "right" not in json.dumps(document)


def test_a_key_is_never_written(start: Start, serve: Serve) -> None:
    _, document = serve(start(Double(key="secret-key")).url, "--rate", "60", "--key", "secret-key")

    assert document
    assert "secret-key" not in json.dumps(document)


def test_an_unknown_model(start: Start, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = tmp_path / "models.json"
    models.write_text(json.dumps({"base": BASE, "adapters": ["adapter-000-typo"]}))
    status, _ = serve(start(Double()).url, "--models", str(models))

    assert status == 1
    assert "no model adapter-000-typo (check --url, and the names in --models or --base)" in capsys.readouterr().err


def test_nobody_listens(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = serve("http://127.0.0.1:9")

    assert status == 1
    assert "http://127.0.0.1:9 cannot be reached" in capsys.readouterr().err


def test_no_list_and_no_file(start: Start, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = serve(start(Double(lists=False)).url)

    assert status == 1
    assert "404" in capsys.readouterr().err


def test_a_list_without_adapters(start: Start, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = serve(start(Double(adapters=0)).url)

    assert status == 1
    assert "--models" in capsys.readouterr().err


def test_models_of_a_file_bring_ranks_and_headers(start: Start, serve: Serve, tmp_path: Path) -> None:
    models = tmp_path / "models.json"
    models.write_text(
        json.dumps(
            [{"id": f"adapter-{number:03d}", "rank": 8 << number, "headers": {"x-team": "a"}} for number in (0, 1)]
        )
    )
    double = start(Double(lists=False))
    _, document = serve(double.url, "--models", str(models), "--rate", "60")

    assert set(phase(document, "zipf 1, warm")["by_rank"]) == {"r008", "r016"}
    assert {request["headers"]["x-team"] for request in double.seen} == {"a"}
    assert "penalty" not in document, "there was no base to compare with"


def test_without_base_and_rate_the_cold_phase_has_no_pace(
    start: Start, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models.json"
    models.write_text('["adapter-000"]')
    status, _ = serve(start(Double(lists=False)).url, "--models", str(models))

    assert status == 1
    assert "give --rate" in capsys.readouterr().err


def test_chat_counts_from_the_first_text(start: Start, serve: Serve) -> None:
    """The event that only names the role comes at once and is no token."""
    double = start(Double(first_s=0.15))
    _, document = serve(double.url, "--api", "chat", "--rate", "30")

    assert phase(document, "base")["ttft_ms"]["p50"] >= 150
    assert {request["path"] for request in double.seen} == {"/v1/chat/completions"}
    assert all(request["messages"][0]["role"] == "user" for request in double.seen)


def test_every_request_has_a_prompt_of_its_own(start: Start, serve: Serve) -> None:
    double = start(Double())
    serve(double.url, "--rate", "60", "--token-ids", "5000", "--prompt", "32")
    prompts = [tuple(request["prompt"]) for request in double.seen if len(request["prompt"]) == 32]

    assert len(set(prompts)) == len(prompts) > 200
    assert {min(map(min, prompts)) >= 100, max(map(max, prompts)) < 5000} == {True}


def test_fields_that_others_refuse_can_be_left_out(start: Start, serve: Serve) -> None:
    double = start(Double())
    serve(double.url, "--rate", "60", "--no-ignore-eos")

    assert not any("ignore_eos" in request for request in double.seen)


def test_a_trace_gives_arrivals_and_sizes(start: Start, serve: Serve, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{number * 2.0},{10 + number % 3},{2 + number % 2}\n" for number in range(60))
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    double = start(Double())
    _, document = serve(double.url, "--trace", str(trace), "--rate", "60")

    found = phase(document, "zipf 1, warm")
    assert found["rate"] == pytest.approx(60, rel=0.05)
    assert found["answer_tokens"] == 2.5
    assert {request["max_tokens"] for request in double.seen} == {2, 3, 4}, "4: the probe"


def test_the_page_shows_what_was_found(start: Start, serve: Serve, tmp_path: Path) -> None:
    double = start(Double(adapters=10))
    double.faults["adapter-009"] = 503
    _, document = serve(double.url, "--rate", "60")
    page = (tmp_path / "found" / "figures.html").read_text()

    assert "<script" not in page
    assert "http 503" in page.lower()
    for each in document["phases"]:
        assert each["name"] in page
    assert page.count("<svg") == 3


def test_one_skew_is_refused(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    status, _ = serve("http://127.0.0.1:9", "--zipf", "1")

    assert status == 2
    assert "at least twice" in capsys.readouterr().err


def test_interruption_keeps_what_was_measured(start: Start, tmp_path: Path) -> None:
    double = start(Double(first_s=0.05))
    out = tmp_path / "figures.json"
    command = [sys.executable, "-m", "lorafleet_engine.bench", "serve", "--url", double.url, *QUICK]
    shelves = os.pathsep.join(str(ROOT / shelf) for shelf in ("contracts", "engine"))
    process = subprocess.Popen(
        [*command, "--rate", "4", "--out", str(out)],
        env=os.environ | {"PYTHONPATH": shelves},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # jobs in the background ignore it
    )
    try:
        deadline = time.monotonic() + 180
        while len(double.seen) < 45 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    document = json.loads(out.read_text())
    assert document["interrupted"] is True
    assert json.loads(output.splitlines()[-1])["interrupted"] is True
    last = document["phases"][-1]
    assert (last["name"], last["interrupted"], last["offered"]) == ("zipf 1, cold", True, 60)
    assert 5 < last["requests"] < 60
    assert (tmp_path / "figures.html").exists()


def test_it_runs_without_what_an_engine_needs(start: Start, tmp_path: Path) -> None:
    """Torch and all that only the engine's extra brings are made impossible to import."""
    blocked = ("torch", "triton", "numpy", "safetensors", "tokenizers", "starlette", "uvicorn", "httpx", "orjson")
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "from lorafleet_engine.bench.command import main\nsys.exit(main(sys.argv[1:]))"
    )
    shelves = os.pathsep.join(str(ROOT / shelf) for shelf in ("contracts", "engine"))
    arguments = ["serve", "--url", start(Double()).url, *QUICK, "--rate", "60", "--out", str(tmp_path / "x.json")]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": shelves},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
