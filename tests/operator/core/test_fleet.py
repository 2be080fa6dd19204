"""Which sets a pool should have, and how large."""

import pytest

from lorafleet_contracts.resources.pool import Replicas
from lorafleet_operator.core.fleet import shared_size


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ({}, 1),
        ({"min": 2, "max": 5}, 2),
        ({"mode": "External", "desired": 3}, 3),
        ({"mode": "External", "desired": 3, "min": 4}, 4),
        ({"mode": "External", "desired": 3, "max": 2}, 2),
        ({"mode": "External", "desired": 3, "min": 2, "max": 5}, 3),
    ],
)
def test_the_size_of_the_shared_set(replicas: dict[str, object], expected: int) -> None:
    assert shared_size(Replicas.model_validate(replicas)) == expected
