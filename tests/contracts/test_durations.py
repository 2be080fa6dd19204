"""Durations of the CRDs."""

import pytest

from lorafleet_contracts.durations import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("30ms", 0.03), ("45s", 45.0), ("15m", 900.0), ("2h", 7200.0), ("0s", 0.0)]
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "15", "m", "1.5h", "-1s", "1h30m", "1d", "1234567s", "5 m", "5m\n"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_seconds(text)
