"""Who reaches which port, tried from pods: tenants none of an engine's three, each part of ours only its own.

Needs a network that enforces NetworkPolicies, as the local cluster's does.
"""

import base64
from collections.abc import Iterator
from functools import partial

import pytest

from e2e.client import Client
from e2e.engines import POOL, find_trust
from e2e.fleet import DEMO, NAMESPACE, Fleet
from e2e.probes import Spot, Target, namespace_of_probes
from e2e.waiting import wait_until
from lorafleet_contracts.admin import DRAIN_PATH, STATE_PATH
from lorafleet_contracts.names import LABEL_POOL, EnginePort

POLICY = f"{POOL}-shared"
TENANT = "lorafleet-e2e-tenant"
MONITORING = "monitoring"
METRICS = {"operator": 8080, "gateway": 9003}


def addresses(fleet: Fleet, namespace: str, selector: str) -> list[str]:
    return [pod["status"]["podIP"] for pod in fleet.list("pods", namespace, selector)]


def engine_ports(fleet: Fleet) -> dict[EnginePort, list[Target]]:
    """Each of the three ports on every replica."""
    replicas = addresses(fleet, DEMO, f"{LABEL_POOL}={POOL}")
    assert replicas
    return {port: [(replica, int(port)) for replica in replicas] for port in EnginePort}


def open_ports(spot: Spot) -> set[EnginePort]:
    """The engine ports that take connections from there. On all replicas alike, or the test ends."""
    found = set()
    for port, targets in engine_ports(spot.fleet).items():
        (state,) = set(spot.connect(targets).values())
        found |= {port} if state == "open" else set()
    return found


def metrics_targets(fleet: Fleet) -> list[Target]:
    return [
        (address, port)
        for component, port in METRICS.items()
        for address in addresses(fleet, NAMESPACE, f"app.kubernetes.io/component={component}")
    ]


def part(fleet: Fleet, component: str, container: str) -> Spot:
    """One pod of our own installation."""
    found = fleet.list("pods", NAMESPACE, f"app.kubernetes.io/component={component}")[0]
    return Spot(fleet, NAMESPACE, found["metadata"]["name"], container)


@pytest.fixture(scope="module")
def tenants_pods(fleet: Fleet, acme: Client) -> Iterator[list[Spot]]:
    """One on every node."""
    with namespace_of_probes(fleet, TENANT) as spots:
        yield spots


@pytest.fixture
def no_policy(fleet: Fleet, tenants_pods: list[Spot]) -> Iterator[None]:
    """The engines' policy gone; an operator that starts anew makes it again."""
    fleet.delete("networkpolicy", POLICY)
    yield
    fleet.kubectl.run("rollout", "restart", "deployment/lorafleet-operator", "-n", NAMESPACE)
    wait_until(lambda: fleet.get("networkpolicy", POLICY), seconds=120, what="the policy is back")
    wait_until(lambda: not open_ports(tenants_pods[0]), seconds=15, what="the policy is enforced again")


def test_a_tenants_pod_reaches_the_gateway_and_no_engine_port(fleet: Fleet, tenants_pods: list[Spot]) -> None:
    for spot in tenants_pods:
        assert open_ports(spot) == set()
        api = (f"lorafleet-gateway.{NAMESPACE}", 8080)
        assert spot.connect([api]) == {api: "open"}
        assert set(spot.connect(metrics_targets(fleet)).values()) == {"closed"}


def test_living_in_the_pools_namespace_opens_nothing(fleet: Fleet, acme: Client) -> None:
    (assets, *_) = fleet.list("pods", selector="app.kubernetes.io/name=demo-assets")
    assert open_ports(Spot(fleet, DEMO, assets["metadata"]["name"], "server")) == set()


def test_each_part_reaches_its_own_ports_only(fleet: Fleet, acme: Client) -> None:
    assert open_ports(part(fleet, "gateway", "picker")) == {EnginePort.SERVING, EnginePort.STATE}
    assert open_ports(part(fleet, "operator", "operator")) == {EnginePort.STATE, EnginePort.ADMIN}


def test_monitoring_reaches_metrics_only(fleet: Fleet, acme: Client) -> None:
    with namespace_of_probes(fleet, MONITORING) as spots:
        for spot in spots:
            wait_until(partial(open_ports, spot), seconds=10, what="the pod's address is let in")
            assert open_ports(spot) == {EnginePort.STATE}
            assert set(spot.connect(metrics_targets(fleet)).values()) == {"open"}


def test_without_the_policy_the_tokens_still_refuse(fleet: Fleet, tenants_pods: list[Spot], no_policy: None) -> None:
    spot = tenants_pods[0]
    wait_until(lambda: open_ports(spot) == set(EnginePort), seconds=15, what="the ports are open")
    secret = fleet.get("secret", f"{POOL}-tokens")
    assert secret
    token = {port: base64.b64decode(secret["data"][port.name.lower()]).decode().split()[0] for port in EnginePort}
    trust = find_trust(fleet, fleet.list("pods", selector=f"{LABEL_POOL}={POOL}")[0])
    calls = {
        EnginePort.SERVING: ("POST", "/v1/chat/completions"),
        EnginePort.STATE: ("GET", STATE_PATH),
        EnginePort.ADMIN: ("POST", DRAIN_PATH),
    }
    for port, targets in engine_ports(fleet).items():
        method, path = calls[port]
        foreign = [token[other] for other in EnginePort if other != port]
        for target in targets:
            headers: list[dict[str, str]] = [{}, *({"authorization": f"Bearer {each}"} for each in ("guess", *foreign))]
            assert spot.request([(target, method, path, each) for each in headers], trust) == [401] * len(headers)
    own = {"authorization": f"Bearer {token[EnginePort.STATE]}"}
    assert spot.request([(engine_ports(fleet)[EnginePort.STATE][0], "GET", STATE_PATH, own)], trust) == [200]
