"""The resource kinds that the operator reads or writes, as URL paths. Holds constants only."""

from typing import Final

from lorafleet_contracts.names import GROUP, VERSION
from lorafleet_kube.paths import SECRETS, Kind

LORA_POOLS: Final = Kind(GROUP, VERSION, "lorapools")
LORA_ADAPTERS: Final = Kind(GROUP, VERSION, "loraadapters")
TENANTS: Final = Kind(GROUP, VERSION, "tenants")
STATEFUL_SETS: Final = Kind("apps", "v1", "statefulsets")
DEPLOYMENTS: Final = Kind("apps", "v1", "deployments")
CONFIG_MAPS: Final = Kind("", "v1", "configmaps")
SERVICES: Final = Kind("", "v1", "services")
EVENTS: Final = Kind("", "v1", "events")
DISRUPTION_BUDGETS: Final = Kind("policy", "v1", "poddisruptionbudgets")
NETWORK_POLICIES: Final = Kind("networking.k8s.io", "v1", "networkpolicies")
LEASES: Final = Kind("coordination.k8s.io", "v1", "leases")

BY_NAME: Final = {
    "LoraPool": LORA_POOLS,
    "LoraAdapter": LORA_ADAPTERS,
    "Tenant": TENANTS,
    "StatefulSet": STATEFUL_SETS,
    "Service": SERVICES,
    "Secret": SECRETS,
    "ConfigMap": CONFIG_MAPS,
    "PodDisruptionBudget": DISRUPTION_BUDGETS,
    "NetworkPolicy": NETWORK_POLICIES,
}
