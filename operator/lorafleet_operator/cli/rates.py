"""From two looks at the engines' states to rates by replica, adapter and tenant. Called by `lorafleet top`; pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lorafleet_contracts.admin import EngineState, Tier
from lorafleet_contracts.names import BASE_MODEL


@dataclass(frozen=True, slots=True)
class Look:
    """The engines' states at a moment (monotonic seconds), by replica; None where one gave no answer."""

    at: float
    states: Mapping[str, EngineState | None]


@dataclass(slots=True)
class _Sums:
    requests: float = 0.0
    tokens: float = 0.0
    in_flight: int = 0
    tiers: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def measure(before: Look, after: Look) -> dict[str, Any]:
    """Requests that ended and tokens per second between two looks; whatever else is as of the second one.

    A replica that was not there before, or has started anew in between, has no rates yet.
    """
    seconds = max(after.at - before.at, 1e-9)
    adapters: dict[str, _Sums] = defaultdict(_Sums)
    tenants: dict[str, _Sums] = defaultdict(_Sums)
    names: dict[str, str] = {}
    replicas = []
    for name, state in sorted(after.states.items()):
        if state is None:
            replicas.append({"replica": name, "state": "no answer"})
            continue
        done = _difference(before.states.get(name), state)
        total = _Sums()
        for (tenant, adapter), (requests, tokens) in done.items():
            for sums in (adapters[adapter], tenants[tenant], total):
                sums.requests += requests / seconds
                sums.tokens += tokens / seconds
        for version in state.versions:
            adapters[version.uid].tiers[version.tier.value] += 1
            adapters[version.uid].in_flight += version.in_flight
            if version.display:
                names[version.uid] = f"{version.display.namespace}/{version.display.name}"
        replicas.append(_replica(name, state, total))
    return {
        "seconds": round(seconds, 3),
        "replicas": replicas,
        "adapters": [_row("adapter", names.get(uid, uid), sums, tiers=True) for uid, sums in _busiest(adapters)],
        "tenants": [_row("tenant", name, sums, tiers=False) for name, sums in _busiest(tenants)],
    }


def _busiest(sums: Mapping[str, _Sums]) -> list[tuple[str, _Sums]]:
    return sorted(sums.items(), key=lambda each: (-each[1].tokens, -each[1].in_flight, each[0]))


def _difference(before: EngineState | None, after: EngineState) -> dict[tuple[str, str], tuple[int, int]]:
    """What was counted in between, by (tenant, adapter's uid or `base`)."""
    if before is None or before.boot_id != after.boot_id:
        return {}
    old = {(each.tenant, each.adapter, each.gateway): each for each in before.usage}
    done: dict[tuple[str, str], tuple[int, int]] = {}
    for row in after.usage:
        was = old.get((row.tenant, row.adapter, row.gateway))
        requests = row.requests - (was.requests if was else 0)
        tokens = row.prompt_tokens + row.completion_tokens
        tokens -= was.prompt_tokens + was.completion_tokens if was else 0
        key = (row.tenant, BASE_MODEL if row.adapter == BASE_MODEL else row.adapter.partition("@")[0])
        known = done.get(key, (0, 0))
        done[key] = (known[0] + requests, known[1] + tokens)
    return done


def _replica(name: str, state: EngineState, total: _Sums) -> dict[str, Any]:
    memory = state.memory
    words = "draining" if state.draining else "ready" if state.ready else "not ready"
    return {
        "replica": name,
        "state": words,
        "requests_per_s": round(total.requests, 2),
        "tokens_per_s": round(total.tokens, 1),
        "in_flight": state.in_flight,
        "queue": state.queue,
        "adapters": sum(each.tier == Tier.GPU for each in state.versions),
        "adapter_bytes": {"used": memory.adapters_used, "budget": memory.adapters} if memory else None,
        "kv_tokens": {"used": memory.kv_tokens_used, "budget": memory.kv_tokens} if memory else None,
    }


def _row(kind: str, name: str, sums: _Sums, *, tiers: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        kind: name,
        "requests_per_s": round(sums.requests, 2),
        "tokens_per_s": round(sums.tokens, 1),
    }
    if tiers:
        row["in_flight"] = sums.in_flight
        row["replicas"] = dict(sums.tiers)
    return row
