"""Orders the replicas for one request: by residency of the version, then by load. Called by shell/picker.py."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lorafleet_contracts.admin import Tier
from lorafleet_gateway.core.records import Model, ObjectKey, Replica
from lorafleet_gateway.core.rejections import adapter_not_ready, pool_not_ready
from lorafleet_gateway.core.residency import EngineView
from lorafleet_gateway.core.table import SetKey, Table

MAX_HOSTS = 4
"""The first choice and three more to retry on; Envoy's num_retries goes with it."""
_TIER_ORDER = {Tier.GPU: 0, Tier.HOST: 1, Tier.DISK: 2}
_UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is known of the replicas now: their own word, and the picks since then, in total and since that word."""

    views: Mapping[Replica, EngineView] = field(default_factory=dict)
    recent_picks: Mapping[Replica, int] = field(default_factory=dict)
    picks: Mapping[Replica, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes: a set of replicas, the first choice and what follows it, and the version to ask for."""

    set: SetKey
    replicas: tuple[Replica, ...]
    version: str


def pick_route(table: Table, fleet: Fleet, pool: ObjectKey, model: Model) -> Route | None:
    """Order the replicas of `pool` for `model`, best first, MAX_HOSTS at most.

    The sets of `model` come in their order; what another set than the first offers is among the hosts too, so that a
    request goes on when a tenant's own replicas die. A replica that has not described itself (its state port does not
    answer) comes last, but counts: the gateway serves on when it cannot see. None: no replica holds the version yet.
    Raises Rejection (503) when no replica takes requests or the adapter has no version.
    """
    replicas = [
        (order, each)
        for order, name in enumerate(model.sets)
        for each in table.sets.get(SetKey(pool, name), ())
        if _takes_requests(fleet.views.get(each))
    ]
    if not replicas:
        raise pool_not_ready(model.name)
    if model.version is None:
        raise adapter_not_ready(model.name)
    ranked = []
    for order, replica in replicas:
        residency = _residency(fleet.views.get(replica), model)
        if residency is not None:
            rank = (residency == _UNKNOWN, order, residency, _load(fleet, replica), fleet.picks.get(replica, 0))
            ranked.append((*rank, replica.serving, replica))
    if not ranked:
        return None
    ranked.sort(key=lambda each: each[:6])
    chosen = ranked[:MAX_HOSTS]
    elsewhere = next((each for each in ranked[MAX_HOSTS:] if each[1] != chosen[0][1]), None)
    if elsewhere is not None and all(each[1] == chosen[0][1] for each in chosen):
        chosen[-1] = elsewhere
    return Route(SetKey(pool, model.sets[chosen[0][1]]), tuple(each[6] for each in chosen), model.version)


def _takes_requests(view: EngineView | None) -> bool:
    return view is None or (view.serves_base and not view.draining)


def _residency(view: EngineView | None, model: Model) -> int | None:
    """How near the version is to the GPU, 0 nearest; None when the replica says that it lacks it."""
    if view is None or model.version is None:
        return _UNKNOWN
    if model.is_base:
        return 0
    tier = view.versions.get(model.version)
    return None if tier is None else _TIER_ORDER[tier]


def _load(fleet: Fleet, replica: Replica) -> int:
    """Requests at the replica as it last said, and those sent there since."""
    view = fleet.views.get(replica)
    return (view.load if view else 0) + fleet.recent_picks.get(replica, 0)
