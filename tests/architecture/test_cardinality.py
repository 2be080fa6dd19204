"""No caller and no user can make our metrics grow without end: each has a bound, and all are driven past it here."""

import itertools
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from lorafleet_contracts.admin import PortName, Tier
from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.tokens import TOKEN_USED_METRIC
from lorafleet_engine.server.auth import CHECK_SECONDS, TokenFile, TokenUses
from lorafleet_engine.server.metrics import FIRST, LATENCY, MAX_PAIRS, MAX_TIMED_PAIRS, STEP, WHOLE
from lorafleet_gateway.shell.metrics import MAX_TENANTS
from lorafleet_operator.core.port_keys import PortKeys, Stage
from lorafleet_operator.shell.pool_metrics import MAX_POOLS
from tests.support.registries import CODES, PHASES, TIERS, drive_engine, drive_gateway, drive_operator

PAIR, TIMED = MAX_PAIRS + 1, MAX_TIMED_PAIRS + 1  # and `other`


def of_histogram(buckets: tuple[float, ...]) -> int:
    """Series of one histogram: its buckets, the one without end, sum, count and the time of creation."""
    return len(buckets) + 4


ENGINE = {
    "lorafleet_adapter_requests": PAIR * len(CODES) * 2,
    "lorafleet_tokens": PAIR * 2 * 2,
    "lorafleet_adapter_lookups": PAIR * len(TIERS) * 2,
    "lorafleet_adapter_ttft_seconds": TIMED * of_histogram(FIRST),
    "lorafleet_adapter_request_seconds": TIMED * of_histogram(WHOLE),
    "lorafleet_cold_load_seconds": len(TIERS) * of_histogram(LATENCY),
    "lorafleet_ttft_seconds": of_histogram(LATENCY),
    "lorafleet_itl_seconds": of_histogram(STEP),
    "lorafleet_queue_wait_seconds": of_histogram(LATENCY),
    "lorafleet_load_seconds": len(PHASES) * len(TIERS) * of_histogram(LATENCY),
    "lorafleet_adapter_evictions": len(TIERS) * 2,
    "lorafleet_resident_bytes": len(Tier),
    "vllm:lora_requests_info": 1,
}
GATEWAY = {
    "lorafleet_gateway_answers": 40 * 2,
    "lorafleet_gateway_refusals": (MAX_TENANTS + 1) * 20 * 2,
    "lorafleet_gateway_throttled": (MAX_TENANTS + 1) * 3 * 2,
    "lorafleet_gateway_limits_store_up": 2,
    "lorafleet_gateway_replicas": 2,
}
OPERATOR = {
    "lorafleet_pool_objective_seconds": MAX_POOLS * 3,
    "lorafleet_pool_replicas": MAX_POOLS * 2,
    "lorafleet_pool_objects": MAX_POOLS * 3 * (len(Reason) + 1),
    "lorafleet_operator_plans": 2 * 2,
    "lorafleet_operator_applies": 10 * 2 * 2,
    "lorafleet_operator_status_writes": 3 * 2,
    "lorafleet_operator_engine_calls": 10 * 2,
}
FEW = 20
"""What a metric without labels may have, as a histogram of its own."""


def series(registry: CollectorRegistry) -> Counter[str]:
    return Counter({family.name: len(family.samples) for family in registry.collect()})


def exceeding(registry: CollectorRegistry, bounds: dict[str, int]) -> Iterator[str]:
    for name, count in series(registry).items():
        if count > bounds.get(name, FEW):
            yield f"{name}: {count} series, at most {bounds.get(name, FEW)} are allowed"


def labelled(registry: CollectorRegistry) -> set[str]:
    """Metrics with labels of ours, which need a bound that somebody thought about."""
    return {
        family.name
        for family in registry.collect()
        for sample in family.samples
        if sample.labels.keys() - {"le", "quantile"}
    }


def test_engine() -> None:
    registry = drive_engine(MAX_PAIRS + 50)
    assert not list(exceeding(registry, ENGINE))
    assert labelled(registry) <= ENGINE.keys()
    found = series(registry)["lorafleet_adapter_requests"]
    assert found == ENGINE["lorafleet_adapter_requests"], "the cap was not reached"


def test_tokens_of_the_ports(tmp_path: Path) -> None:
    """What was rotated away leaves nothing behind; who offers new keys beside old ones gets one more for each port."""
    registry = CollectorRegistry()
    tick = partial(next, itertools.count(step=CHECK_SECONDS))
    files = {port: TokenFile(tmp_path / port.value, clock=tick) for port in PortName}
    registry.register(TokenUses(files))
    keys = PortKeys({port.value: b"0" for port in PortName})
    for number in range(1, 20):
        offered = keys.offer(dict.fromkeys(PortName, str(number).encode()))
        for keys in (offered, offered.replace(), offered.replace().settle()):
            for port, accepted in keys.tokens_for("uid").by_port.items():
                (tmp_path / port).write_text("\n".join(accepted))
            assert series(registry)[TOKEN_USED_METRIC] == len(PortName) * (1 if keys.stage is Stage.RESTING else 2)


def test_gateway() -> None:
    registry = drive_gateway(MAX_TENANTS + 50)
    assert not list(exceeding(registry, GATEWAY))
    assert labelled(registry) <= GATEWAY.keys()
    assert series(registry)["lorafleet_gateway_refusals"] == (MAX_TENANTS + 1) * 2


def test_operator() -> None:
    metrics = drive_operator(MAX_POOLS + 5)
    assert not list(exceeding(metrics.registry, OPERATOR))
    assert labelled(metrics.registry) <= OPERATOR.keys()
    assert series(metrics.registry)["lorafleet_pool_replicas"] == MAX_POOLS * 2
    metrics.board.forget("uid-demo-pool-0")
    assert b'pool="demo/pool-0"' not in metrics.render()
