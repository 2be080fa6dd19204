"""Speaks to engines' ports as operator and gateway do; used by the e2e tests only.

Whoever is marked as speaking TLS must show a certificate of the pool; who is not (an engine of an earlier release) is
spoken to in plain HTTP.
"""

import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from e2e.fleet import DEMO, NAMESPACE, Fleet, Object, forwarded
from lorafleet_contracts.admin import STATE_PATH, EngineState
from lorafleet_contracts.names import ENGINE_CA_KEY, LABEL_POOL, LABEL_TLS, EnginePort, engine_server_name, tls_secret

POOL = "smol"


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom an engine must prove to be: the server's name, and who signs for it (PEM)."""

    name: str
    roots: str

    @property
    def context(self) -> ssl.SSLContext:
        """A client's side of the handshake, which still needs the name."""
        return ssl.create_default_context(cadata=self.roots)


def find_trust(fleet: Fleet, pod: Object) -> Trust | None:
    """What an engine's pod must prove; None where it is not marked."""
    metadata = pod["metadata"]
    if metadata["labels"].get(LABEL_TLS) != "true":
        return None
    pool, namespace = metadata["labels"][LABEL_POOL], metadata["namespace"]
    secret = fleet.get("secret", tls_secret(pool), namespace)
    assert secret, f"{namespace}/{tls_secret(pool)} is missing"
    roots = base64.b64decode(secret["data"][ENGINE_CA_KEY]).decode()
    return Trust(engine_server_name(namespace, pool), roots)


@contextmanager
def reaching(fleet: Fleet, pod: Object, port: EnginePort) -> Iterator[httpx.Client]:
    """A client of one port of an engine's pod."""
    metadata, trust = pod["metadata"], find_trust(fleet, pod)

    def name_server(request: httpx.Request) -> None:
        if trust is not None:
            request.extensions["sni_hostname"] = trust.name

    with forwarded(fleet.kubectl, f"pod/{metadata['name']}", port, metadata["namespace"]) as address:
        verify: ssl.SSLContext | bool = True
        if trust is not None:
            address, verify = address.replace("http:", "https:"), trust.context
        hooks = {"request": [name_server]}
        with httpx.Client(base_url=address, verify=verify, event_hooks=hooks, timeout=40) as client:
            yield client


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
        with reaching(fleet, pod, EnginePort.STATE) as client:
            answer = client.get(STATE_PATH, headers={"authorization": f"Bearer {token}"})
        states[name] = EngineState.model_validate_json(answer.raise_for_status().content)
    return states


def nudge(fleet: Fleet, number: int) -> None:
    """Have the kubelets look at the mounts now: they do so when a pod changes, and else once in about a minute."""
    for namespace, selector in ((DEMO, f"{LABEL_POOL}={POOL}"), (NAMESPACE, "app.kubernetes.io/component=gateway")):
        words = ("pods", "-n", namespace, "-l", selector, "--overwrite", f"e2e/look={number}")
        fleet.kubectl.run("annotate", *words)


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
