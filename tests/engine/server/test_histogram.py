from prometheus_client import CollectorRegistry, Histogram, generate_latest

from lorafleet_engine.server.histogram import LightHistogram

BOUNDS = (0.01, 0.1, 1.0)


def test_shows_what_the_library_s_own_histogram_shows() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    light = LightHistogram("gap_seconds", "Gaps", BOUNDS)
    ours.register(light)
    full = Histogram("gap_seconds", "Gaps", registry=theirs, buckets=BOUNDS)
    for value in (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 7.0):
        light.observe(value)
        full.observe(value)

    shown, wanted = (generate_latest(registry).decode().splitlines() for registry in (ours, theirs))
    assert sorted(shown) == sorted(line for line in wanted if "_created" not in line)
