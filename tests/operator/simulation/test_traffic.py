import numpy as np
import pytest

from lorafleet_operator.simulation.traffic import (
    Burst,
    Caller,
    Shift,
    add_burst,
    even_times,
    overlay,
    plain,
    poisson_times,
    zipf_weights,
)


def counts(callers: np.ndarray, size: int) -> list[float]:
    return (np.bincount(callers, minlength=size) / len(callers)).tolist()


def test_the_first_adapter_of_the_manifests_is_the_most_popular() -> None:
    drawn = overlay(plain(even_times(100.0, 1000.0)), [[0], [1], [2]], 1.0, np.random.default_rng(0))
    assert counts(drawn.callers, 3) == pytest.approx(zipf_weights(3, 1.0).tolist(), abs=0.01)
    flat = overlay(plain(even_times(100.0, 1000.0)), [[0], [1], [2]], 0.0, np.random.default_rng(0))
    assert counts(flat.callers, 3) == pytest.approx([1 / 3] * 3, abs=0.01)


def test_an_adapter_s_tenants_call_it_equally() -> None:
    drawn = overlay(plain(even_times(100.0, 1000.0)), [[0, 1, 2], [3]], 0.0, np.random.default_rng(0))
    assert counts(drawn.callers, 4) == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2], abs=0.01)


def test_a_shift_moves_popularity_along() -> None:
    lengths = plain(even_times(100.0, 1000.0))
    drawn = overlay(lengths, [[0], [1], [2]], 3.0, np.random.default_rng(0), [Shift(500.0, 1)])
    assert int(np.bincount(drawn.callers[lengths.times < 500]).argmax()) == 0
    assert int(np.bincount(drawn.callers[lengths.times >= 500]).argmax()) == 1


def test_a_burst_is_one_tenant_s_and_sorted_in() -> None:
    callers = [Caller("ns/a", "u1"), Caller("ns/b", "u2")]
    quiet = overlay(plain(even_times(10.0, 1000.0)), [[0]], 1.0, np.random.default_rng(0))
    loud = add_burst(quiet, Burst("ns/b", 200.0, 400.0, 20.0), callers, np.random.default_rng(1))
    mine = loud.times[loud.callers == 1]
    assert len(mine) == pytest.approx(4000, rel=0.1)
    assert mine.min() >= 200
    assert mine.max() <= 400
    assert np.all(np.diff(loud.times) >= 0)
    with pytest.raises(ValueError, match="ns/c may call no adapter"):
        add_burst(quiet, Burst("ns/c", 0.0, 1.0, 1.0), callers, np.random.default_rng(1))


def test_rates() -> None:
    assert len(even_times(30.0, 60.0)) == 1800
    assert len(poisson_times(30.0, 1000.0, np.random.default_rng(3))) == pytest.approx(30_000, rel=0.03)
