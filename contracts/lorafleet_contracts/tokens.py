"""Derives the port tokens of a pool from the installation's port keys. Called by the operator and the gateway."""

import hashlib
import hmac

from lorafleet_contracts.admin import PortName


def port_token(key: bytes, pool_uid: str, port: PortName) -> str:
    """The bearer token of one port of one pool: HMAC-SHA256(key, "{port}/{pool uid}"), in hex."""
    return hmac.new(key, f"{port.value}/{pool_uid}".encode(), hashlib.sha256).hexdigest()


def token_matches(presented: str, accepted: list[str]) -> bool:
    """Constant-time check of a presented token against the current one and its predecessors."""
    matched = False
    for token in accepted:
        matched |= hmac.compare_digest(presented.encode(), token.encode())
    return matched
