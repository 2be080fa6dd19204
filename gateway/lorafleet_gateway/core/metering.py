"""Turns the engines' counters into what each tenant has used since the last look. Called by shell/limits/.

Engines count by (tenant, adapter, gateway instance) since their boot, when a request has ended, streams among them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lorafleet_contracts.admin import UsageState
from lorafleet_gateway.core.records import ObjectKey, Replica

FIRST_ANSWER = 256
"""Tokens of an answer of a tenant that has had none yet."""
NEWEST_SHARE = 0.2
"""How much the newest answers count in a tenant's usual one."""


@dataclass(frozen=True, slots=True)
class Used:
    """What ended since the last look: requests, and tokens of their prompts and answers."""

    requests: int
    prompt_tokens: int
    answer_tokens: int


@dataclass(slots=True)
class _Counters:
    """`whole`: a row that is not here has counted nothing yet."""

    boot_id: str
    rows: dict[tuple[str, str], UsageState]
    whole: bool


class Meter:
    """The counters as they were, of one gateway instance, and each tenant's usual answer."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._seen: dict[Replica, _Counters] = {}
        self._answers: dict[ObjectKey, float] = {}

    def usual_answer(self, tenant: ObjectKey) -> int:
        """Tokens that answers to this tenant mostly have."""
        return round(self._answers.get(tenant, FIRST_ANSWER))

    def read(self, replica: Replica, boot_id: str, rows: Iterable[UsageState]) -> dict[ObjectKey, Used]:
        """What each tenant has used of `replica` by these rows, which need not be all, since the last look.

        The first look at a replica only sets the marks: its counters may be older than this process.
        """
        own = {(row.tenant, row.adapter): row for row in rows if row.gateway == self._gateway}
        before = self._seen.get(replica)
        if before is None or before.boot_id != boot_id:
            self._seen[replica] = _Counters(boot_id, {}, whole=True)
        seen = self._seen[replica]
        old = seen.rows
        used: dict[ObjectKey, Used] = {}
        for key, row in own.items() if before is not None else ():
            if key not in old and not seen.whole:
                continue
            news = _difference(row, old.get(key))
            namespace, _, name = row.tenant.partition("/")
            if news.requests:
                used[namespace, name] = _add(used.get((namespace, name)), news)
        old.update(own)
        for tenant, each in used.items():
            self._learn(tenant, each)
        return used

    def skip(self, replica: Replica, boot_id: str) -> None:
        """It was not asked: what it has counted by now is never charged, not when it is asked again either."""
        self._seen[replica] = _Counters(boot_id, {}, whole=False)

    def forget(self, replica: Replica) -> None:
        """It is gone."""
        self._seen.pop(replica, None)

    def _learn(self, tenant: ObjectKey, used: Used) -> None:
        newest = used.answer_tokens / used.requests
        usual = self._answers.get(tenant)
        self._answers[tenant] = newest if usual is None else usual + NEWEST_SHARE * (newest - usual)


def _difference(row: UsageState, old: UsageState | None) -> Used:
    if old is None:
        return Used(row.requests, row.prompt_tokens, row.completion_tokens)
    return Used(
        row.requests - old.requests,
        row.prompt_tokens - old.prompt_tokens,
        row.completion_tokens - old.completion_tokens,
    )


def _add(one: Used | None, other: Used) -> Used:
    if one is None:
        return other
    return Used(
        one.requests + other.requests,
        one.prompt_tokens + other.prompt_tokens,
        one.answer_tokens + other.answer_tokens,
    )
