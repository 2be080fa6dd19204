"""Derives the port tokens of a pool from the installation's port keys, and checks them. Called by all programs."""

import hashlib
import hmac

from lorafleet_contracts.admin import PortName

TOKEN_USED_METRIC = "lorafleet_port_token_used_timestamp_seconds"
"""Of an engine, by port and mark: when a token that it accepts was last used (Unix time), 0 for never."""
MARK_DIGITS = 12


def port_token(key: bytes, pool_uid: str, port: PortName) -> str:
    """The bearer token of one port of one pool: HMAC-SHA256(key, "{port}/{pool uid}"), in hex."""
    return hmac.new(key, f"{port.value}/{pool_uid}".encode(), hashlib.sha256).hexdigest()


def token_mark(token: str) -> str:
    """What a token is called where it must not be shown: the beginning of its SHA-256; nothing leads back."""
    return hashlib.sha256(token.encode()).hexdigest()[:MARK_DIGITS]


def token_matches(presented: str, accepted: list[str]) -> bool:
    """Constant-time check of a presented token against the current one and its predecessors."""
    matched = False
    for token in accepted:
        matched |= hmac.compare_digest(presented.encode(), token.encode())
    return matched
