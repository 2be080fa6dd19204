"""What the objects of one namespace may ask of a pool, together. Used by operator and gateway, which must agree.

The oldest have the first claim: a new object never takes away what others have been granted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lorafleet_contracts.resources.tenancy import Tenancy
from lorafleet_contracts.resources.tenant import Isolation, TenantLimits

Key = tuple[str, str]
"""(namespace, name)"""


@dataclass(frozen=True, slots=True)
class TenantClaim:
    """What one tenant asks for. `created` orders claims: a number or a timestamp, the same kind for all."""

    key: Key
    created: int | str
    limits: TenantLimits
    isolation: Isolation
    weight: int = 1


@dataclass(frozen=True, slots=True)
class AdapterClaim:
    """What one adapter asks for; `pinned` in bytes, 0 while they are unknown or may be unloaded."""

    key: Key
    created: int | str
    priority: int
    pinned: int
    min_replicas: int


def refuse_tenants(tenancy: Tenancy, claims: Iterable[TenantClaim]) -> dict[Key, str]:
    """Why tenants ask for more than is left for their namespace, by key."""
    refused: dict[Key, str] = {}
    granted: dict[tuple[str, str], int] = {}
    for claim in sorted(claims, key=lambda each: (each.created, each.key)):
        if claim.isolation not in tenancy.isolation:
            refused[claim.key] = f"isolation {claim.isolation} is not among tenancy.isolation"
            continue
        weight = granted.get((claim.key[0], "weight"), 0) + claim.weight
        if tenancy.max_weight is not None and weight > tenancy.max_weight:
            refused[claim.key] = (
                f"the weights of namespace {claim.key[0]} would be {weight} in sum, above tenancy.maxWeight "
                f"{tenancy.max_weight}"
            )
            continue
        asked = _asked(claim.limits)
        why = [_above_limit(tenancy, claim.key[0], name, number, granted) for name, number in asked.items()]
        found = next((each for each in why if each), None)
        if found:
            refused[claim.key] = found
            continue
        granted[claim.key[0], "weight"] = weight
        for name, number in asked.items():
            granted[claim.key[0], name] = granted.get((claim.key[0], name), 0) + (number or 0)
    return refused


def refuse_adapters(tenancy: Tenancy, pinned_bytes: int | None, claims: Iterable[AdapterClaim]) -> dict[Key, str]:
    """Why adapters ask for more than is left for their namespace, by key. `pinned_bytes` is maxPinnedBytes, read."""
    refused: dict[Key, str] = {}
    granted: dict[str, tuple[int, int]] = {}
    for claim in sorted(claims, key=lambda each: (each.created, each.key)):
        namespace = claim.key[0]
        pinned, replicas = granted.get(namespace, (0, 0))
        pinned, replicas = pinned + claim.pinned, replicas + claim.min_replicas
        if tenancy.max_priority is not None and claim.priority > tenancy.max_priority:
            refused[claim.key] = f"priority {claim.priority} is above tenancy.maxPriority {tenancy.max_priority}"
        elif claim.pinned and pinned_bytes is not None and pinned > pinned_bytes:
            refused[claim.key] = (
                f"the pinned adapters of namespace {namespace} would take {pinned} bytes, above tenancy.maxPinnedBytes "
                f"{pinned_bytes}"
            )
        elif tenancy.max_min_replicas is not None and replicas > tenancy.max_min_replicas:
            refused[claim.key] = (
                f"minReplicas of namespace {namespace} would be {replicas} in sum, above tenancy.maxMinReplicas "
                f"{tenancy.max_min_replicas}"
            )
        else:
            granted[namespace] = (pinned, replicas)
    return refused


def _asked(limits: TenantLimits) -> dict[str, int | None]:
    return {
        "requests_per_second": limits.requests_per_second,
        "burst": limits.burst or limits.requests_per_second,
        "tokens_per_minute": limits.tokens_per_minute,
        "concurrent_requests": limits.concurrent_requests,
    }


def _above_limit(
    tenancy: Tenancy, namespace: str, name: str, number: int | None, granted: dict[tuple[str, str], int]
) -> str | None:
    most: int | None = getattr(tenancy.max_limits, name)
    if most is None:
        return None
    field = TenantLimits.model_fields[name].alias
    if number is None:
        return f"limits.{field} is not set, and tenancy.maxLimits allows namespace {namespace} {most}"
    total = granted.get((namespace, name), 0) + number
    if total <= most:
        return None
    return f"limits.{field} of namespace {namespace} would be {total} in sum, above tenancy.maxLimits {most}"
