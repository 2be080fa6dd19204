"""The PodDisruptionBudget of a set of engines: a drain takes one replica at a time, and that once it is empty."""

from typing import Any

from lorafleet_operator.core.manifests.identity import object_meta, selector_labels, set_name
from lorafleet_operator.core.sets import EngineSet
from lorafleet_operator.core.snapshot import Meta


def build_disruption_budget(pool: Meta, engines: EngineSet) -> dict[str, Any]:
    """As many voluntary disruptions as the set bears; what isn't ready may always go: no drain hangs on it."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": object_meta(pool, set_name(pool.name, engines.name), engines.name),
        "spec": {
            "maxUnavailable": engines.disruptions,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector_labels(pool.name, engines.name)},
        },
    }
