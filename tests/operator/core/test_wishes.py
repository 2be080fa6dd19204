"""What placement is told of an adapter's load."""

import pytest

from lorafleet_operator.core.popularity import Pace
from lorafleet_operator.core.wishes import load_of


@pytest.mark.parametrize(
    ("pace", "total", "load"),
    [
        (Pace(1.0, 2.0), Pace(10.0, 10.0), 2.0),  # a quiet moment
        (Pace(3.9, 0.5), Pace(10.0, 10.0), 0.5),  # not half of what a replica can do
        (Pace(4.0, 0.5), Pace(10.0, 10.0), 4.0),  # a surge
        (Pace(4.0, 0.5), Pace(10.0, 5.0), 2.0),  # a surge among loads that rise
        (Pace(6.0, 1.0), Pace(12.0, 2.0), 1.0),  # all have just begun
        (Pace(6.0, 5.0), Pace(10.0, 10.0), 5.0),  # much, and nothing new
        (Pace(4.0, 0.5), Pace(10.0, 20.0), 4.0),  # a surge while others calm down
        (Pace(), Pace(), 0.0),
    ],
)
def test_a_surge_counts_at_once_and_all_else_by_its_slow_mean(pace: Pace, total: Pace, load: float) -> None:
    assert load_of(pace, total, capacity=8.0) == load
