import pytest

from lorafleet_engine.server.targets import read_weight


@pytest.mark.parametrize(
    ("text", "weight"),
    [("1", 1), ("7", 7), ("1000", 1000), ("0", 1), ("", 1), ("-3", 1), ("1e9", 1), ("99999", 1), ("\u0667", 1)],
)
def test_what_is_no_weight_counts_as_the_usual_one(text: str, weight: int) -> None:
    assert read_weight(text) == weight
