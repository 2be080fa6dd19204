"""Events as the API server takes them. Called by cluster.py, rotator.py and the commands."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

MESSAGE_LIMIT = 1024
"""The API server refuses longer messages."""


@dataclass(frozen=True, slots=True)
class Event:
    """What `component` has to say. `about` names the object: apiVersion, kind, namespace, name, uid."""

    about: Mapping[str, str]
    reason: str
    message: str
    component: str
    type: Literal["Warning", "Normal"] = "Normal"

    def body(self, **name: str) -> dict[str, Any]:
        """The object as of now, beside what it is about. `name` or `generateName`: the first makes it one event."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "metadata": {**name, "namespace": self.about["namespace"]},
            "involvedObject": dict(self.about),
            "type": self.type,
            "reason": self.reason,
            "message": self.message[:MESSAGE_LIMIT],
            "source": {"component": self.component},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def involved(found: Mapping[str, Any]) -> dict[str, str]:
    """How an event names an object that the API server has shown."""
    meta = found["metadata"]
    return {
        "apiVersion": found["apiVersion"],
        "kind": found["kind"],
        **{name: meta[name] for name in ("namespace", "name", "uid")},
    }
