"""Every answer the gateway gives instead of an engine: one exception, one constructor for each reason.

Raised by core and by shell/picker.py, which turns it into an OpenAI-shaped body. Messages never repeat a key.
"""

from dataclasses import dataclass
from math import ceil

from lorafleet_gateway.core.limits import Limit, Limits, Refused

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RETRY_AFTER_SECONDS = 2


@dataclass(eq=False)  # not frozen: raising sets __traceback__
class Rejection(Exception):
    """An answer with an HTTP status >= 400. `retry_after` is in seconds; `allow` lists methods, for a 405; `limit` says
    what was too much, for a 429."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after: int | None = None
    allow: str | None = None
    limit: Limit | None = None

    @property
    def type(self) -> str:
        """OpenAI's coarse error type; for a 429 what there was too much of."""
        if self.limit is not None:
            return self.limit.value
        return SERVER_ERROR if self.status >= 500 else INVALID_REQUEST


def invalid_api_key() -> Rejection:
    """Missing, malformed, unknown, expired: one answer, so that nothing can be told apart."""
    return Rejection(401, "invalid_api_key", "Incorrect or expired API key. Send it as `Authorization: Bearer lf_...`.")


def tenant_not_accepted(why: str) -> Rejection:
    """The tenant asks for more than its pool leaves for its namespace; the operator says the same in its status."""
    message = f"The pool does not accept this tenant: {why}. Its owner finds this in the Tenant's condition Accepted."
    return Rejection(403, "tenant_not_accepted", message)


def unknown_url(method: str, path: str) -> Rejection:
    """No such URL."""
    return Rejection(404, "unknown_url", f"Unknown request URL: {method} {path[:200]}.")


def method_not_allowed(method: str, path: str, allow: str) -> Rejection:
    """The URL exists, with other methods."""
    return Rejection(405, "method_not_allowed", f"{method} is not allowed for {path}; use {allow}.", allow=allow)


def body_too_large(limit: int) -> Rejection:
    """The request body is above the limit in bytes."""
    return Rejection(
        413, "request_too_large", f"The request body is larger than {limit} bytes. Send fewer or shorter messages."
    )


def invalid_body(message: str, param: str | None = None) -> Rejection:
    """The body is no JSON object with a usable `model`."""
    return Rejection(400, "invalid_request", message, param=param)


def model_not_found(name: str) -> Rejection:
    """A name that means nothing to this caller: the same answer whether it is missing or foreign."""
    message = f"The model `{name[:128]}` does not exist or you do not have access to it."
    return Rejection(404, "model_not_found", message, param="model")


def adapter_not_ready(name: str) -> Rejection:
    """The caller may use the adapter, but no replica serves a version of it."""
    message = f"The model `{name}` is not ready: no replica serves it yet. Try again shortly."
    return Rejection(503, "adapter_not_ready", message, param="model", retry_after=RETRY_AFTER_SECONDS)


def adapter_queue_full(name: str) -> Rejection:
    """No replica holds the adapter yet, and as many requests as may are waiting for it."""
    message = f"Too many requests are waiting for the model `{name}`, which is being loaded. Try again shortly."
    return Rejection(503, "adapter_queue_full", message, param="model", retry_after=RETRY_AFTER_SECONDS)


def pool_not_ready(name: str) -> Rejection:
    """The caller may use the model, but its pool has no replica that takes requests."""
    message = f"The model `{name}` has no replica that takes requests. Try again shortly."
    return Rejection(503, "model_not_ready", message, param="model", retry_after=RETRY_AFTER_SECONDS)


def over_limit(tenant: str, limits: Limits, refused: Refused) -> Rejection:
    """One of the tenant's limits; which, and when to try again."""
    match refused.limit:
        case Limit.REQUESTS if limits.requests is not None:
            words = f"{limits.requests.rate:.0f} requests per second"
        case Limit.TOKENS if limits.tokens is not None:
            words = f"{limits.tokens.most:.0f} tokens per minute"
        case _:
            words = f"{limits.concurrency} requests at a time"
    wait = max(ceil(refused.wait), 1)
    message = f"Rate limit reached: tenant {tenant} may have {words}. Try again in {wait} s."
    return Rejection(429, "rate_limit_exceeded", message, retry_after=wait, limit=refused.limit)


def limits_unavailable() -> Rejection:
    """The tenant has limits, and nobody can say whether it keeps them."""
    message = "The gateway cannot check this tenant's limits at the moment. Try again shortly."
    return Rejection(503, "limits_unavailable", message, retry_after=RETRY_AFTER_SECONDS)


def starting() -> Rejection:
    """The gateway has not read the API server yet."""
    return Rejection(503, "gateway_starting", "The gateway is starting. Try again shortly.", retry_after=1)


def internal_error() -> Rejection:
    """A fault of the gateway's own."""
    return Rejection(500, "internal_error", "The gateway failed to handle the request.")
