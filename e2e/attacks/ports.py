"""Attacks on ports that are not for tenants: from pods that may not connect, and with tokens that are not theirs."""

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from e2e.attacks.siege import Outcome, Siege
from e2e.attacks.wire import bearer
from e2e.engines import POOL, reaching
from e2e.fleet import DEMO, NAMESPACE
from e2e.probes import Spot, Target
from lorafleet_contracts.admin import DRAIN_PATH, STATE_PATH
from lorafleet_contracts.names import HEADER_MODEL, LABEL_POOL, PORT_KEYS_SECRET, EnginePort

OURS = {"operator": (8080, 8081), "gateway": (9002, 9003, 9004, 19000)}
"""Metrics and health, the picker's own ports, Envoy's admin port."""
COMPONENT = "app.kubernetes.io/component="
CALLS = {
    EnginePort.SERVING: ("POST", "/v1/chat/completions"),
    EnginePort.STATE: ("GET", STATE_PATH),
    EnginePort.ADMIN: ("POST", DRAIN_PATH),
}


def tenants_pods(siege: Siege) -> Iterator[Outcome]:
    """No port of an engine and no inner one of ours, from a pod on every node and from one beside the engines."""
    engines = _engines(siege)
    inner = {
        f"{component} {each}'s port {port}": (each, port)
        for component, ports in OURS.items()
        for each in _addresses(siege, NAMESPACE, COMPONENT + component)
        for port in ports
    }
    (assets, *_) = siege.fleet.list("pods", selector="app.kubernetes.io/name=demo-assets")
    beside = Spot(siege.fleet, DEMO, assets["metadata"]["name"], "server")
    tries = [(f"from {spot.pod}", spot, engines | inner) for spot in siege.pods]
    with ThreadPoolExecutor() as threads:
        for found in threads.map(_connect, [*tries, ("from the pool's namespace", beside, engines)]):
            yield from found


def gateways_pod(siege: Siege) -> Iterator[Outcome]:
    """The admin port, from the one pod that may call the others."""
    admin = {name: target for name, target in _engines(siege).items() if target[1] == EnginePort.ADMIN}
    for pod in siege.fleet.list("pods", NAMESPACE, COMPONENT + "gateway"):
        yield from _connect(
            ("from the gateway", Spot(siege.fleet, NAMESPACE, pod["metadata"]["name"], "picker"), admin)
        )


def tokens(siege: Siege) -> Iterator[Outcome]:
    """Each port by a way around the policies, with everything but its own token."""
    secret = siege.fleet.get("secret", f"{POOL}-tokens")
    assert secret
    token = {port: _words(secret["data"][port.name.lower()]) for port in EnginePort}
    keys = siege.fleet.get("secret", PORT_KEYS_SECRET, NAMESPACE)
    assert keys
    siege.used.update(*token.values(), *map(_words, keys["data"].values()))

    engine = siege.fleet.get("pod", f"{POOL}-shared-0")
    assert engine

    def call(port: EnginePort) -> list[Outcome]:
        tried = {"no token": {}, "a guess": bearer("guess"), "a tenant's key": bearer(siege.victims.acme)}
        tried["a version's name"] = {HEADER_MODEL: "base"}
        foreign = [(other, each) for other in EnginePort if other != port for each in token[other]]
        tried |= {f"the {other.name.lower()} port's token": bearer(each) for other, each in foreign}
        method, path = CALLS[port]
        with reaching(siege.fleet, engine, port) as client:
            replies = {name: client.request(method, path, headers=headers, json={}) for name, headers in tried.items()}
        return [Outcome(f"{port.name.lower()} port, {name}", "401", str(replies[name].status_code)) for name in tried]

    with ThreadPoolExecutor() as threads:
        for found in threads.map(call, EnginePort):
            yield from found


def _words(data: str) -> list[str]:
    """A Secret's value: tokens or keys, one a line."""
    return base64.b64decode(data).decode().split()


def _engines(siege: Siege) -> dict[str, Target]:
    found = _addresses(siege, DEMO, f"{LABEL_POOL}={POOL}")
    assert found
    return {f"{each}'s {port.name.lower()} port": (each, int(port)) for each in found for port in EnginePort}


def _addresses(siege: Siege, namespace: str, selector: str) -> list[str]:
    return [pod["status"]["podIP"] for pod in siege.fleet.list("pods", namespace, selector)]


def _connect(tried: tuple[str, Spot, dict[str, Target]]) -> list[Outcome]:
    whence, spot, targets = tried
    states = spot.connect(list(targets.values()))
    answers = {name: "no connection" if states[target] == "closed" else "open" for name, target in targets.items()}
    return [Outcome(f"{name} {whence}", "no connection", answer) for name, answer in answers.items()]
