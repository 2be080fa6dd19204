"""What /metrics of an engine shows before anything has happened."""

from lorafleet_engine.server.metrics import Metrics


def test_a_kind_of_load_is_there_before_its_first() -> None:
    """Prometheus sees a rise only where there was a figure before."""
    metrics = Metrics()

    def count(phase: str, start_tier: str) -> float | None:
        labels = {"phase": phase, "start_tier": start_tier}
        return metrics.registry.get_sample_value("lorafleet_load_seconds_count", labels)

    assert count("load", "host") == 0
    metrics.observe_load("load", "host", 0.2)
    assert [count("load", "host"), count("fetch", "source"), count("pack", "disk")] == [1, 0, 0]
