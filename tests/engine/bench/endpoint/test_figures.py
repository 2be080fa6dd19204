"""Figures of outcomes whose times are written down."""

from array import array
from dataclasses import replace

import pytest

from lorafleet_engine.bench.endpoint.asks import Ask
from lorafleet_engine.bench.endpoint.client import Outcome
from lorafleet_engine.bench.endpoint.drive import Phase
from lorafleet_engine.bench.endpoint.figures import (
    Slo,
    decile_of,
    phase_figures,
    quantile,
    rank_class,
    summarise,
    waiting,
)
from lorafleet_engine.bench.endpoint.models import Model

SLO = Slo(ttft=0.5, itl=0.03)


def answered(at: float, ttft: float, gaps: tuple[float, ...], popularity: int = 0, **more: int) -> Outcome:
    ask = Ask(at, 0, Model(f"a{popularity}", more.get("rank")), popularity, 10, len(gaps) + 1)
    first = at + ttft
    return Outcome(
        ask, sent=at, start="gpu", first=first, last=first + sum(gaps), ended=first, gaps=array("d", gaps),
        tokens=len(gaps) + 1, prompt_tokens=10,
    )  # fmt: skip


def failed(at: float, kind: str) -> Outcome:
    return Outcome(Ask(at, 0, Model("a0"), 0, 10, 5), sent=at, error=kind, detail="why", ended=at + 1)


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_quantiles_are_values_that_occurred(share: float, value: int) -> None:
    assert quantile(list(range(1, 101)), share) == value


def test_no_values_have_no_quantile() -> None:
    assert quantile([], 0.99) is None


def test_latency_counts_from_when_a_request_was_due_and_not_from_when_it_was_sent() -> None:
    late = answered(1.0, 0.25, (0.01,))
    late.sent = 1.2

    found = summarise([late], SLO)

    assert found["ttft_ms"]["p50"] == 250.0


def test_goodput_counts_first_token_and_pace() -> None:
    outcomes = [
        answered(0.0, 0.4, (0.02, 0.02)),
        answered(0.0, 0.6, (0.02, 0.02)),  # late
        answered(0.0, 0.4, (0.02, 0.05)),  # slow
        answered(0.0, 0.4, (0.001, 0.05)),  # one long gap, but the mean holds
        failed(0.0, "HTTP 503"),
    ]

    found = summarise(outcomes, SLO)

    assert (found["in_slo"], found["in_slo_share"]) == (2, 0.4)
    assert found["errors"] == {"HTTP 503": 1}
    assert found["ttft_ms"]["count"] == 4, "of complete answers only"


def test_gaps_of_all_answers_stand_together() -> None:
    found = summarise([answered(0.0, 0.1, (0.01, 0.02)), answered(0.0, 0.1, (0.03,))], SLO)

    assert found["itl_ms"] == {"p50": 20.0, "p99": 30.0, "max": 30.0, "count": 3}


@pytest.mark.parametrize(("popularity", "decile"), [(0, 1), (19, 1), (20, 2), (199, 10)])
def test_deciles_are_of_the_catalogue(popularity: int, decile: int) -> None:
    assert decile_of(200)(answered(0.0, 0.1, (), popularity)) == decile


@pytest.mark.parametrize(("rank", "name"), [(1, "r008"), (8, "r008"), (9, "r016"), (64, "r064"), (300, "r512")])
def test_rank_classes(rank: int, name: str) -> None:
    assert rank_class(answered(0.0, 0.1, (), rank=rank)) == name


def test_an_unknown_rank() -> None:
    assert rank_class(answered(0.0, 0.1, ())) == "unknown"


def test_waiting_is_who_is_due_and_has_no_token() -> None:
    outcomes = [answered(0.0, 1.0, ()), answered(0.1, 1.0, ()), failed(0.2, "timeout")]

    assert waiting(outcomes, 2.0) == {"mean": pytest.approx(sum([1, 3, 3, 3, 2, 0, 0, 0, 0]) / 9, abs=0.01), "max": 3}


def test_figures_of_a_phase() -> None:
    phase = Phase("warm", 4, [answered(0.0, 0.1, (0.01,) * 9, 0, rank=8), answered(1.0, 0.2, (0.01,) * 9, 9, rank=64)])
    phase.seconds = 2.0

    found = phase_figures(phase, SLO, 10)

    assert (found["requests"], found["offered"]) == (2, 4)
    assert (found["requests_per_s"], found["tokens_per_s"], found["goodput_per_s"]) == (1.0, 10.0, 1.0)
    assert {name: each["ttft_ms"]["p99"] for name, each in found["by_decile"].items()} == {"1": 100.0, "10": 200.0}
    assert set(found["by_rank"]) == {"r008", "r064"}
    assert set(found["by_adapter"]) == {"a0", "a9"}
    assert set(found["by_start"]) == {"gpu"}


def test_a_phase_of_the_base_has_no_deciles() -> None:
    base = answered(0.0, 0.1, ())
    base.ask = replace(base.ask, popularity=None)
    phase = Phase("base", 1, [base], seconds=1.0)

    assert not [name for name in phase_figures(phase, SLO, 0) if name.startswith("by_")]


def test_a_phase_without_any_outcome() -> None:
    found = phase_figures(Phase("warm", 10, interrupted=True), SLO, 10)

    assert (found["requests"], found["ttft_ms"]["p99"], found["requests_per_s"]) == (0, None, None)
