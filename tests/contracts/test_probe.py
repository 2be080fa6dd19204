"""The probe set is as long as promised and cannot be read two ways."""

from lorafleet_contracts.probe import FORCED, PROBE_TOKENS, PROBES


def test_probe_set() -> None:
    assert len(PROBES) == len(set(PROBES)) == 32
    assert all(40 < len(text) <= 120 for text in PROBES)
    assert 1 <= FORCED < PROBE_TOKENS
