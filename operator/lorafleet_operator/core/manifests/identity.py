"""Names, labels and ownership of a pool's objects. Called by its sibling modules and by the verdict on a pool."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lorafleet_contracts.names import API_VERSION, LABEL_POOL, LABEL_SET, SHARED_SET
from lorafleet_operator.core.snapshot import Meta

NAME_LIMIT = 52
"""Of a StatefulSet: its pods carry its name and a hash of eleven characters in a label, which may have 63."""


def set_name(pool: str, engines: str = SHARED_SET) -> str:
    """Name of the objects of one of a pool's sets. Where it would be too long, a hash stands for the pool's end."""
    name = f"{pool}-{engines}"
    if len(name) <= NAME_LIMIT:
        return name
    mark = hashlib.sha256(pool.encode()).hexdigest()[:6]
    return f"{pool[: NAME_LIMIT - len(engines) - len(mark) - 2]}-{mark}-{engines}"


def tokens_name(pool: str) -> str:
    """Name of the Secret with a pool's port tokens."""
    return f"{pool}-tokens"


def selector_labels(pool: str, engines: str = SHARED_SET) -> dict[str, str]:
    """Labels that select the pods of one of a pool's sets; immutable for the life of the set."""
    return {LABEL_POOL: pool, LABEL_SET: engines}


def selector_text(pool: str) -> str:
    """The same for the shared set as a selector string, for the status."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector_labels(pool).items()))


def labels(pool: str, engines: str = SHARED_SET) -> dict[str, str]:
    """Labels of every object of one of a pool's sets; what the pool has but once goes with the shared one."""
    return {
        "app.kubernetes.io/name": "lorafleet-engine",
        "app.kubernetes.io/instance": pool,
        "app.kubernetes.io/component": "engine",
        "app.kubernetes.io/managed-by": "lorafleet-operator",
        **selector_labels(pool, engines),
    }


def object_meta(pool: Meta, name: str, engines: str = SHARED_SET) -> dict[str, Any]:
    """Metadata of an object that the pool owns, so that the garbage collector ends it with the pool."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": "LoraPool",
        "name": pool.name,
        "uid": pool.uid,
        "controller": True,
    }
    return {
        "name": name,
        "namespace": pool.namespace,
        "labels": labels(pool.name, engines),
        "ownerReferences": [owner],
    }


def fingerprint(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over a manifest's canonical JSON."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
