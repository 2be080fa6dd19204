"""Limits in a Valkey or Redis that all gateway instances share. Used by limiter.py.

Each question is one round trip: a script that runs in the store, by its clock, so that all instances agree and nothing
is charged to a request that is refused. The sums are those of core/limits.py. The places of open requests expire unless
they are renewed: an instance that dies leaves none behind.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from valkey.asyncio import BlockingConnectionPool, Valkey
from valkey.asyncio.retry import Retry
from valkey.backoff import NoBackoff
from valkey.exceptions import ConnectionError as ConnectionLostError
from valkey.exceptions import ValkeyError

from lorafleet_gateway.core.limits import Ask, Limit, Limits, Refused
from lorafleet_gateway.core.records import ObjectKey

STORE_ERRORS = (ValkeyError, OSError, TimeoutError)
"""What its calls raise while the store is away."""
PLACE_SECONDS = 30
"""After which the place of an open request that nobody has renewed is free."""
TIMEOUT_SECONDS = 0.5
"""Of a call that is on its way."""
CONNECTIONS = 64
QUEUE_SECONDS = 5.0
"""Of a call that waits for one of them: a burst is no store that is away, which those on their way find out sooner."""

_REFILL = """
local request_rate, request_most = tonumber(ARGV[1]), tonumber(ARGV[2])
local token_rate, token_most = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local saved = redis.call('HMGET', KEYS[1], 'at', 'requests', 'tokens')
local at = tonumber(saved[1] or now)
local elapsed = math.max(now - at, 0)
now = math.max(now, at)
local requests = math.min(tonumber(saved[2] or request_most) + elapsed * request_rate, request_most)
local tokens = math.min(tonumber(saved[3] or token_most) + elapsed * token_rate, token_most)
local function save()
  local text = function(number) return string.format('%.17g', number) end
  local full = 0
  redis.call('HSET', KEYS[1], 'at', text(now))
  if request_rate > 0 then
    redis.call('HSET', KEYS[1], 'requests', text(requests))
    full = (request_most - requests) / request_rate
  else
    redis.call('HDEL', KEYS[1], 'requests')
  end
  if token_rate > 0 then
    redis.call('HSET', KEYS[1], 'tokens', text(tokens))
    full = math.max(full, (token_most - tokens) / token_rate)
  else
    redis.call('HDEL', KEYS[1], 'tokens')
  end
  redis.call('EXPIRE', KEYS[1], math.ceil(full) + 1)  -- a full budget needs no record
end
local function refuse(limit, wait) return {limit, string.format('%.6f', wait)} end
"""
_ADMIT = (
    _REFILL
    + """
local asked, id = tonumber(ARGV[5]), ARGV[6]
local concurrency, seconds = tonumber(ARGV[7]), tonumber(ARGV[8])
if request_rate > 0 and requests < 1 then
  return refuse('requests', (1 - requests) / request_rate)
end
if token_rate > 0 and tokens < math.min(asked, token_most) then
  return refuse('tokens', (math.min(asked, token_most) - tokens) / token_rate)
end
if concurrency > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
  if redis.call('ZCARD', KEYS[2]) >= concurrency then return refuse('concurrency', 1) end
  redis.call('ZADD', KEYS[2], now + seconds, id)
  redis.call('EXPIRE', KEYS[2], seconds)
end
requests = requests - 1
tokens = tokens - asked
save()
return {}
"""
)
_CHARGE = (
    _REFILL
    + """
tokens = math.min(tokens - tonumber(ARGV[5]), token_most)
if ARGV[6] ~= '' then redis.call('ZREM', KEYS[2], ARGV[6]) end
save()
return {}
"""
)
_RENEW = """
local time = redis.call('TIME')
local seconds = tonumber(ARGV[1])
for index = 2, #ARGV do
  redis.call('ZADD', KEYS[1], 'XX', tonumber(time[1]) + seconds, ARGV[index])
end
redis.call('EXPIRE', KEYS[1], seconds)
return {}
"""


class SharedStore:
    """A store by its URL (`valkey://`, `redis://`; with TLS `valkeys://`, `rediss://`). Calls raise STORE_ERRORS.

    Raises ValueError for a URL of another kind.
    """

    def __init__(self, url: str) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=QUEUE_SECONDS,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            decode_responses=True,
            retry=Retry(NoBackoff(), 1),  # a pooled connection may be one that the store has closed
            retry_on_error=[ConnectionLostError],
        )
        self._client = Valkey.from_pool(pool)
        self._admit = self._client.register_script(_ADMIT)
        self._charge = self._client.register_script(_CHARGE)
        self._renew = self._client.register_script(_RENEW)

    async def admit(self, tenant: ObjectKey, limits: Limits, ask: Ask) -> Refused | None:
        """See Store."""
        rest = (ask.tokens, ask.id, limits.concurrency or 0, PLACE_SECONDS)
        refused: list[Any] = await self._admit(keys=_keys(tenant), args=[*_budgets(limits), *rest])
        return Refused(Limit(refused[0]), float(refused[1])) if refused else None

    async def charge(self, tenant: ObjectKey, limits: Limits, tokens: int) -> None:
        """See Store."""
        await self._charge(keys=_keys(tenant), args=[*_budgets(limits), tokens, ""])

    async def end(self, tenant: ObjectKey, limits: Limits, ask: Ask) -> None:
        """See Store."""
        await self._charge(keys=_keys(tenant), args=[*_budgets(limits), -ask.tokens, ask.id])

    async def renew(self, held: Mapping[ObjectKey, Iterable[str]]) -> None:
        """See Store."""
        for tenant, ids in held.items():
            await self._renew(keys=[_keys(tenant)[1]], args=[PLACE_SECONDS, *ids])

    async def ping(self) -> None:
        """Raise when the store does not answer, or takes no writes."""
        await self._client.set("lorafleet:alive", 1, ex=60)

    async def close(self) -> None:
        """End all connections."""
        await self._client.aclose()


def _keys(tenant: ObjectKey) -> list[str]:
    """The braces keep a tenant's keys on one node of a cluster."""
    name = "lorafleet:{" + "/".join(tenant) + "}"
    return [f"{name}:budgets", f"{name}:open"]


def _budgets(limits: Limits) -> list[float]:
    numbers: list[float] = []
    for budget in (limits.requests, limits.tokens):
        numbers += [budget.rate, budget.most] if budget else [0, 0]
    return numbers
