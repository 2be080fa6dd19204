"""Names, labels and ownership of a pool's objects. Called by its sibling modules and by the verdict on a pool."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lorafleet_contracts.names import API_VERSION, LABEL_POOL, LABEL_SET, SHARED_SET
from lorafleet_operator.core.snapshot import Meta


def set_name(pool: str) -> str:
    """Name of the StatefulSet and the Service of a pool's shared set."""
    return f"{pool}-{SHARED_SET}"


def tokens_name(pool: str) -> str:
    """Name of the Secret with a pool's port tokens."""
    return f"{pool}-tokens"


def selector_labels(pool: str) -> dict[str, str]:
    """Labels that select the pods of a pool's shared set; immutable for the life of the pool."""
    return {LABEL_POOL: pool, LABEL_SET: SHARED_SET}


def selector_text(pool: str) -> str:
    """The same as a selector string, for the status."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector_labels(pool).items()))


def labels(pool: str) -> dict[str, str]:
    """Labels of every object of a pool."""
    return {
        "app.kubernetes.io/name": "lorafleet-engine",
        "app.kubernetes.io/instance": pool,
        "app.kubernetes.io/component": "engine",
        "app.kubernetes.io/managed-by": "lorafleet-operator",
        **selector_labels(pool),
    }


def object_meta(pool: Meta, name: str) -> dict[str, Any]:
    """Metadata of an object that the pool owns, so that the garbage collector ends it with the pool."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": "LoraPool",
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
    }
    return {"name": name, "namespace": pool.namespace, "labels": labels(pool.name), "ownerReferences": [owner]}


def fingerprint(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over a manifest's canonical JSON."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
