"""Reads the engines' own state as operator and gateway see it; used by the e2e tests only."""

import base64

import httpx

from e2e.fleet import DEMO, Fleet, forwarded
from lorafleet_contracts.admin import STATE_PATH, EngineState
from lorafleet_contracts.names import LABEL_POOL, EnginePort

POOL = "smol"


def engine_states(fleet: Fleet, only: str = "", pool: str = POOL) -> dict[str, EngineState]:
    """The state of every replica of the quickstart's pool (or another), or of one only, by the pod's name."""
    secret = fleet.get("secret", f"{pool}-tokens")
    assert secret, "the pool has no token Secret"
    token = base64.b64decode(secret["data"]["state"]).decode().split()[0]
    states = {}
    for pod in fleet.list("pods", selector=f"{LABEL_POOL}={pool}"):
        name = pod["metadata"]["name"]
        if only not in ("", name):
            continue
        with forwarded(fleet.kubectl, f"pod/{name}", EnginePort.STATE, DEMO) as address:
            answer = httpx.get(address + STATE_PATH, headers={"authorization": f"Bearer {token}"}, timeout=40)
        states[name] = EngineState.model_validate_json(answer.raise_for_status().content)
    return states


def adapter_bytes(fleet: Fleet) -> dict[str, int]:
    """How many bytes adapters take on every replica."""
    return {name: state.memory.adapters_used if state.memory else 0 for name, state in engine_states(fleet).items()}


def holders(fleet: Fleet, adapter: str) -> set[str]:
    """The replicas that have any version of an adapter of the demo."""
    return {
        name
        for name, state in engine_states(fleet).items()
        if any(each.display and each.display.name == adapter for each in state.versions)
    }


def restarts(fleet: Fleet) -> dict[str, int]:
    """How often every replica's container was restarted."""
    pods = fleet.list("pods", selector=f"{LABEL_POOL}={POOL}")
    return {pod["metadata"]["name"]: int(pod["status"]["containerStatuses"][0]["restartCount"]) for pod in pods}


def ready_replicas(fleet: Fleet, pool: str = POOL) -> set[str]:
    """The replicas that are ready. A pod that was made a moment ago has no container yet."""
    pods = fleet.list("pods", selector=f"{LABEL_POOL}={pool}")
    return {
        pod["metadata"]["name"]
        for pod in pods
        if any(each["ready"] for each in pod["status"].get("containerStatuses", []))
    }
