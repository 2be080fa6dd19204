"""What a request line asks for."""

import pytest

from lorafleet_gateway.core.rejections import Rejection
from lorafleet_gateway.core.urls import Operation, Wanted, read_url


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("POST", "/v1/chat/completions", Wanted(Operation.GENERATE)),
        ("POST", "/v1/completions?x=1", Wanted(Operation.GENERATE)),
        ("GET", "/v1/models", Wanted(Operation.LIST_MODELS)),
        ("GET", "/v1/models?limit=2", Wanted(Operation.LIST_MODELS)),
        ("GET", "/v1/models/pirate", Wanted(Operation.GET_MODEL, "pirate")),
        ("GET", "/v1/models/team%2Fpirate:v1", Wanted(Operation.GET_MODEL, "team/pirate:v1")),
        ("GET", "/v1/models/team/pirate", Wanted(Operation.GET_MODEL, "team/pirate")),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models/pirate", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/other/v1/models/x", 404),
        ("GET", "", 404),
    ],
)
def test_read_url(method: str, target: str, expected: Wanted | int) -> None:
    if isinstance(expected, Wanted):
        assert read_url(method, target) == expected
        return
    with pytest.raises(Rejection) as rejected:
        read_url(method, target)
    assert rejected.value.status == expected
    assert (rejected.value.allow is not None) is (expected == 405)
