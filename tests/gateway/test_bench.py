"""The benchmark runs and says what it is asked for; its figures are nobody's business here."""

import pytest

from tests.gateway.bench.__main__ import Settings, measure, summarize

pytestmark = pytest.mark.envoy


async def test_the_benchmark_measures_both_ways() -> None:
    settings = Settings(rates=(20,), pairs=1, block_seconds=1.0, streams=4, chunks=50, stream_pairs=1)
    summary = summarize(await measure(settings))
    assert summary.keys() == {"rates", "stream_ratio"}
    assert summary["rates"].keys() == {"20"}
    assert summary["rates"]["20"].keys() == {"added_p50_ms", "added_p95_ms"}
    assert summary["rates"]["20"]["added_p50_ms"] > 0
    assert summary["stream_ratio"] > 0
