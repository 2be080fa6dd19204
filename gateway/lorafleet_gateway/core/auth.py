"""Says whose key a request carries. Called by shell/picker.py; the time is an argument."""

from collections.abc import Mapping

from lorafleet_contracts.keys import MalformedKeyError, key_matches, parse_key
from lorafleet_gateway.core.records import ObjectKey, StoredKey, Tenant
from lorafleet_gateway.core.rejections import invalid_api_key

SCHEME = "bearer "
NO_KEY = StoredKey("0" * 64, None)
"""Compared when the key names no entry, so that an unknown entry takes as long as a wrong secret."""


def authenticate(authorization: str, tenants: Mapping[ObjectKey, Tenant], now: float) -> Tenant:
    """The tenant whose unexpired key `authorization` carries; `now` is seconds since the epoch. Raises Rejection."""
    if authorization[: len(SCHEME)].lower() != SCHEME:
        raise invalid_api_key()
    key = authorization[len(SCHEME) :].strip()
    try:
        name = parse_key(key)
    except MalformedKeyError:
        raise invalid_api_key() from None
    tenant = tenants.get((name.namespace, name.tenant))
    stored = dict(tenant.keys).get(name.id, NO_KEY) if tenant else NO_KEY
    matched = key_matches(key, stored.sha256)
    expired = stored.expires is not None and stored.expires <= now
    if tenant is None or not matched or expired:
        raise invalid_api_key()
    return tenant
