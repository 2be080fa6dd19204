"""Evaluates label selectors and namespace policies. Called by the operator's core and the gateway's routing table."""

from collections.abc import Mapping

from lorafleet_contracts.resources.pool import AllowedNamespaces
from lorafleet_contracts.resources.schema import LabelSelector, LabelSelectorRequirement


def matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether `labels` satisfy `selector`, as Kubernetes means it (an empty selector matches all)."""
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _satisfies(requirement, labels) for requirement in selector.match_expressions
    )


def admits(policy: AllowedNamespaces, own: str, namespace: str, labels: Mapping[str, str]) -> bool:
    """Whether a pool in namespace `own` accepts objects of `namespace`, which has these labels."""
    if namespace == own or policy.from_ == "All":
        return True
    return policy.from_ == "Selector" and policy.selector is not None and matches(policy.selector, labels)


def _satisfies(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    present = requirement.key in labels
    match requirement.operator:
        case "Exists":
            return present
        case "DoesNotExist":
            return not present
        case "In":
            return present and labels[requirement.key] in requirement.values
        case _:
            return not present or labels[requirement.key] not in requirement.values
