"""What statuses say of rank classes and promotions, and the events about their changes. Called by the planning."""

from collections.abc import Sequence

from lorafleet_contracts.resources.pool import LoraPoolStatus
from lorafleet_contracts.resources.tenant import Isolation, PromotionStatus, TenantStatus
from lorafleet_operator.core.actions import StatusWrite, Warn
from lorafleet_operator.core.conditions import parse_timestamp
from lorafleet_operator.core.dedication import routed_set
from lorafleet_operator.core.fleet import Fleet
from lorafleet_operator.core.promotion import Stage, Why
from lorafleet_operator.core.snapshot import Meta, Pool, Tenant

TROUBLES = frozenset({Why.PARITY_FAILED, Why.NOT_READY, Why.SET_LOST, Why.NO_ROOM, Why.BUDGET_REDUCED})


def tell_classes(pool: Pool, judged: LoraPoolStatus | None, fleet: Fleet) -> LoraPoolStatus | None:
    """A pool's new status with the verdict on its classes; None when the one that stands says the same."""
    new = (judged or pool.status).model_copy(update={"rank_classes": fleet.classes})
    return new if new != pool.status else None


def tell_promotion(tenant: Tenant, judged: TenantStatus | None, fleet: Fleet) -> TenantStatus | None:
    """A tenant's new status with its promotion; None when the one that stands says the same."""
    verdict = fleet.promotions.get(tenant.meta.uid)
    promotion = verdict.status if verdict else tenant.status.promotion
    changes = {"promotion": promotion, "isolation": _isolation(tenant, promotion)}
    new = (judged or tenant.status).model_copy(update=changes)
    return new if new != tenant.status else None


def _isolation(tenant: Tenant, promotion: PromotionStatus | None) -> Isolation | None:
    """What is in force: who has been on shared replicas stays there until gateways have been sent to its own."""
    before = tenant.status.isolation
    if tenant.spec is None or tenant.spec.isolation == "Shared":
        return before if tenant.spec is None else "Shared"
    return "Shared" if before == "Shared" and routed_set(promotion) is None else "Dedicated"


def news_of(writes: Sequence[StatusWrite], pool: Pool, tenants: Sequence[Tenant]) -> list[Warn]:
    """The events of these new statuses: a class was split off or came back, a tenant moved on."""
    known = {each.meta.uid: each for each in tenants}
    news = []
    for write in writes:
        if isinstance(write.status, LoraPoolStatus):
            event = _of_pool(write, pool)
        elif isinstance(write.status, TenantStatus) and write.uid in known:
            event = _of_tenant(write, known[write.uid])
        else:
            event = None
        if event is not None:
            news.append(event)
    return news


def _of_pool(write: StatusWrite, pool: Pool) -> Warn | None:
    assert isinstance(write.status, LoraPoolStatus)
    old, new = pool.status.rank_classes, write.status.rank_classes
    if new is None or new.split == (old.split if old else []):
        return None
    names = ", ".join(str(each) for each in new.split) or "none"
    message = f"rank classes with replicas of their own: {names}. {new.message}"
    return _event(pool.meta, write, new.since, ("Normal", "RankClasses", message))


def _of_tenant(write: StatusWrite, tenant: Tenant) -> Warn | None:
    assert isinstance(write.status, TenantStatus)
    old, new = tenant.status.promotion, write.status.promotion
    if new is None or (old is not None and (old.stage, old.reason) == (new.stage, new.reason)):
        return None
    troubled = new.reason in TROUBLES
    reason = f"Promotion{new.reason if Stage(new.stage) is Stage.SHARED else new.stage}"
    message = f"{new.stage} ({new.reason}): {new.message}"
    return _event(tenant.meta, write, new.since, ("Warning" if troubled else "Normal", reason, message))


def _event(meta: Meta, write: StatusWrite, since: str, words: tuple[str, str, str]) -> Warn:
    kind, reason, message = words
    name = f"{meta.name}.{meta.uid}.{reason.lower()}.{int(parse_timestamp(since)):x}"
    return Warn(name, write, meta.generation, reason, message, "Warning" if kind == "Warning" else "Normal")
