"""Events beside what a command changed: who did what, by the API server's own word. Called by `key` and `ports`.

A courtesy: what was done stands even where the user may write no Events, and then the command says so.
"""

import sys
from collections.abc import Mapping
from typing import Any

from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import KubeError
from lorafleet_operator.shell.events import Event, involved
from lorafleet_operator.shell.kinds import EVENTS

COMPONENT = "lorafleet-command"
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def record(api: KubeApi, about: Mapping[str, Any], reason: str, act: str) -> None:
    """Write an Event about an object (apiVersion, kind, metadata). `act` goes on after the user's name; no secrets."""
    meta = about["metadata"]
    try:
        event = Event(involved(about), reason, f"{await _who(api)} {act}", COMPONENT)
        body = event.body(generateName=f"{meta['name']}-")
        await api.request("POST", EVENTS.path(meta["namespace"]), body=body)
    except KubeError as error:
        print(f"lorafleet: done, but there is no Event that says so: {error}", file=sys.stderr)


async def _who(api: KubeApi) -> str:
    """Who the API server takes us for."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await api.request("POST", REVIEW, body=body)
    return str(answer["status"]["userInfo"]["username"])
