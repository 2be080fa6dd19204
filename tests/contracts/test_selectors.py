import pytest

from lorafleet_contracts.resources.pool import AllowedNamespaces
from lorafleet_contracts.resources.schema import LabelSelector
from lorafleet_contracts.selectors import admits, matches

LABELS = {"tier": "gold", "team": "acme"}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, True),
        ({"matchLabels": {"tier": "gold"}}, True),
        ({"matchLabels": {"tier": "silver"}}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold", "silver"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"tier": "gold"}, "matchExpressions": [{"key": "zone", "operator": "Exists"}]}, False),
    ],
)
def test_matches(selector: dict[str, object], expected: bool) -> None:
    assert matches(LabelSelector.model_validate(selector), LABELS) is expected


@pytest.mark.parametrize(
    ("policy", "namespace", "expected"),
    [
        ({}, "own", True),
        ({}, "other", False),
        ({"from": "All"}, "other", True),
        ({"from": "Selector", "selector": {"matchLabels": {"tier": "gold"}}}, "other", True),
        ({"from": "Selector", "selector": {"matchLabels": {"tier": "tin"}}}, "other", False),
        ({"from": "Selector", "selector": {"matchLabels": {"tier": "tin"}}}, "own", True),
    ],
)
def test_admits(policy: dict[str, object], namespace: str, expected: bool) -> None:
    assert admits(AllowedNamespaces.model_validate(policy), "own", namespace, LABELS) is expected
