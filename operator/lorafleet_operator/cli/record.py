"""Events beside what a command changed: who did what, by the API server's own word. Called by `key` and `ports`.

A courtesy: what was done stands even where the user may write no Events, and then the command says so.
"""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import KubeError
from lorafleet_operator.shell.kinds import EVENTS

COMPONENT = "lorafleet-command"
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def record(api: KubeApi, about: Mapping[str, Any], reason: str, act: str) -> None:
    """Write an Event about an object (apiVersion, kind, metadata). `act` goes on after the user's name; no secrets."""
    meta = about["metadata"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        who = await _who(api)
        body = {
            "metadata": {"generateName": f"{meta['name']}-", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                **{name: meta[name] for name in ("namespace", "name", "uid")},
            },
            "type": "Normal",
            "reason": reason,
            "message": f"{who} {act}",
            "source": {"component": COMPONENT},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await api.request("POST", EVENTS.path(meta["namespace"]), body=body)
    except KubeError as error:
        print(f"lorafleet: done, but there is no Event that says so: {error}", file=sys.stderr)


async def _who(api: KubeApi) -> str:
    """Who the API server takes us for."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await api.request("POST", REVIEW, body=body)
    return str(answer["status"]["userInfo"]["username"])
