"""Arrivals and popularity: right rates and shares, the same for the same seed, traces as they are published."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from lorafleet_engine.bench.endpoint.asks import (
    Arrival,
    Sizes,
    TraceError,
    at_rate,
    name_adapters,
    name_base,
    poisson,
    read_trace,
)
from lorafleet_engine.bench.endpoint.models import Model

SIZES = Sizes(256, 64)
ADAPTERS = tuple(Model(f"a{number}") for number in range(50))
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_poisson_arrivals_have_their_rate_and_spread() -> None:
    arrivals = poisson(20.0, 20_000, SIZES, seed=1)
    gaps = [later.at - earlier.at for earlier, later in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)

    assert mean == pytest.approx(1 / 20, rel=0.05)
    assert variance == pytest.approx(1 / 20**2, rel=0.1)  # that of an exponential distribution
    assert min(gaps) >= 0


def test_one_seed_gives_one_run_and_another_seed_another() -> None:
    first, again, other = (poisson(5.0, 50, SIZES, seed) for seed in (1, 1, 2))

    assert first == again != other
    assert name_adapters(first, ADAPTERS, 1.0, 1) == name_adapters(again, ADAPTERS, 1.0, 1)
    assert name_adapters(first, ADAPTERS, 1.0, 1) != name_adapters(first, ADAPTERS, 1.0, 2)


@pytest.mark.parametrize("zipf", [1.0, 0.1, 0.0])
def test_popularity_follows_zipf(zipf: float) -> None:
    drawn = Counter(ask.popularity for ask in name_adapters(poisson(1.0, 40_000, SIZES, 3), ADAPTERS, zipf, 3))
    whole = sum((number + 1) ** -zipf for number in range(len(ADAPTERS)))

    for number in (0, 1, 9, 49):
        assert drawn[number] / 40_000 == pytest.approx((number + 1) ** -zipf / whole, rel=0.12)


def test_the_base_has_the_arrivals_of_the_adapters() -> None:
    arrivals = poisson(5.0, 20, SIZES, 1)
    adapters, base = name_adapters(arrivals, ADAPTERS, 1.0, 1), name_base(arrivals, Model("base"))

    assert [(ask.at, ask.prompt_tokens, ask.answer_tokens) for ask in adapters] == [
        (ask.at, ask.prompt_tokens, ask.answer_tokens) for ask in base
    ]
    assert {ask.popularity for ask in base} == {None}


def test_a_published_trace_is_read(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(
        HEADER
        + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:48.0,879,0\n"
    )
    first, second, third = read_trace(file, 10)

    assert (first.at, first.prompt_tokens, first.answer_tokens) == (0.0, 374, 44)
    assert (second.prompt_tokens, second.answer_tokens) == (879, 1), "sorted, and every answer has a token"
    assert third.at == pytest.approx(4.314579, abs=1e-5)
    assert len(read_trace(file, 2)) == 2


def test_a_trace_is_stretched_to_a_rate() -> None:
    arrivals = at_rate([Arrival(0.0, 1, 1), Arrival(30.0, 1, 1), Arrival(40.0, 1, 1)], rate=6.0)

    assert [arrival.at for arrival in arrivals] == pytest.approx([0.0, 0.375, 0.5])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "TIMESTAMP"),
        (HEADER + "soon,1,2\n", "line 2"),
        (HEADER + "1.5,many,2\n", "line 2"),
        (HEADER + "1.5,-3,2\n", "tokens must be"),
        (HEADER + "1.5\n", "line 2"),
        (HEADER, "holds no requests"),
    ],
)
def test_another_format_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)

    with pytest.raises(TraceError, match=says):
        read_trace(file, 10)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none"):
        read_trace(tmp_path / "none.csv", 10)
