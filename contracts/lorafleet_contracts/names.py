"""Every name that two programs must spell alike: API group, labels, headers, ports, Secrets, sets. Decides nothing."""

import hashlib
from enum import IntEnum
from typing import Final

GROUP: Final = "lorafleet.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

FIELD_MANAGER: Final = "lorafleet-operator"

LABEL_POOL: Final = "lorafleet.io/pool"
"""On pods, Services and EndpointSlices of an engine set: the LoraPool's name (same namespace)."""
LABEL_SET: Final = "lorafleet.io/set"
"""The set of replicas inside a pool: `shared`, one for each rank class that is split off, one a dedicated tenant."""
SHARED_SET: Final = "shared"
MERGED_PREFIX: Final = "merged-"
PRIVATE_PREFIX: Final = "private-"
LABEL_TLS: Final = "lorafleet.io/tls"
"""On engine pods whose ports speak TLS: `true`. Pods without it, of earlier releases, speak plain HTTP."""
LABEL_ZONE: Final = "topology.kubernetes.io/zone"
"""Kubernetes' own, on nodes."""
LABEL_CREDENTIALS: Final = "lorafleet.io/source-credentials"

HEADER_PREFIX: Final = "x-lorafleet-"
HEADER_MODEL: Final = "x-lorafleet-model"
"""`{uid}@{digest}` of the adapter version to serve, or BASE_MODEL for the base."""
HEADER_TENANT: Final = "x-lorafleet-tenant"
HEADER_WEIGHT: Final = "x-lorafleet-weight"
"""The tenant's share of the scheduler, a whole number; absent: 1."""
HEADER_GATEWAY: Final = "x-lorafleet-gateway"
HEADER_RETRY: Final = "x-lorafleet-retry"
"""On a 503: another replica may serve this request now."""
HEADER_REQUEST_ID: Final = "x-request-id"
BASE_MODEL: Final = "base"
"""Value of HEADER_MODEL for a request to the base model (a uid never equals it)."""

PORT_KEYS_SECRET: Final = "lorafleet-port-keys"
"""Secret in the operator's namespace: random keys, from which each pool's port tokens are derived."""

ENGINE_CA: Final = "lorafleet-engine-ca"
"""In the release's namespace: the Secret with the CA of engines' certificates, and the ConfigMap with whom to trust."""
ENGINE_CA_KEY: Final = "ca.crt"
"""Of that ConfigMap: the certificates (PEM) of the present CA and, while it changes, of the one before."""
SERVING_TLS_PORT: Final = "serving-tls"
"""Name of the serving port, in pods and EndpointSlices, of engines whose three ports speak TLS."""

EXIT_BASE_DOES_NOT_FIT: Final = 3
"""Exit status of an engine whose device has no room for the base: it would end the same way whenever it started."""


class EnginePort(IntEnum):
    """The engine's three ports, each with a credential of its own."""

    SERVING = 8000
    STATE = 8001
    ADMIN = 8002


def tls_secret(pool: str) -> str:
    """Name of the Secret, beside a pool, with what its engines speak TLS with (`tls.crt`, `tls.key`, `ca.crt`)."""
    return f"{pool}-tls"


def version_key(uid: str, digest: str) -> str:
    """The engine's name of one adapter version; engines know versions, never aliases."""
    return f"{uid}@{digest}"


def split_version_key(key: str) -> tuple[str, str]:
    """Return (uid, digest). Raises ValueError for anything else."""
    uid, separator, digest = key.partition("@")
    if not (uid and separator and digest):
        raise ValueError(f"not a version key ({{uid}}@{{digest}}): {key!r}")
    return uid, digest


def engine_server_name(namespace: str, pool: str) -> str:
    """The name in the certificates of a pool's engines; pods have no names of their own that would last."""
    return f"{pool}.{namespace}.engines.lorafleet"


def class_set(ceiling: int) -> str:
    """The set of a rank class that was split off."""
    return f"class-{ceiling}"


def merged_set(tenant_uid: str) -> str:
    """The set that answers one version of a tenant, merged into the weights."""
    return f"{MERGED_PREFIX}{_short(tenant_uid)}"


def private_set(tenant_uid: str) -> str:
    """The set that answers one tenant only, with its adapters beside the base."""
    return f"{PRIVATE_PREFIX}{_short(tenant_uid)}"


def is_dedicated(name: str) -> bool:
    """Whether a set answers one tenant only."""
    return name.startswith((MERGED_PREFIX, PRIVATE_PREFIX))


def _short(uid: str) -> str:
    """Eight hex digits that stand for a uid: the uid's own first ones say little (they may be a clock)."""
    return hashlib.sha256(uid.encode()).hexdigest()[:8]
