"""The format of tenants' API keys. Called by the gateway (check) and the CLI (create); holds no secret itself.

A key is `lf_<namespace>_<tenant>_<id>_<secret>`: it names its Tenant and entry, so no other tenant's entry can match
it, and `_` separates safely because none of the names may hold it.
"""

import hashlib
import hmac
import string
from dataclasses import dataclass

PREFIX = "lf"
SECRET_BYTES = 32
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SECRET_LENGTH = 43  # ceil(256 bits / log2(62))


class MalformedKeyError(ValueError):
    """The text is not an API key of this system. The message never repeats it."""


@dataclass(frozen=True, slots=True)
class KeyName:
    """Which entry a key claims to be."""

    namespace: str
    tenant: str
    id: str


def format_key(name: KeyName, secret: bytes) -> str:
    """Write the key for SECRET_BYTES random bytes. Raises ValueError for another length."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"an API key needs {SECRET_BYTES} random bytes")
    return f"{PREFIX}_{name.namespace}_{name.tenant}_{name.id}_{_base62(int.from_bytes(secret, 'big'))}"


def parse_key(key: str) -> KeyName:
    """Read which entry `key` claims to be. Raises MalformedKeyError."""
    parts = key.split("_")
    if len(parts) != 5 or parts[0] != PREFIX or not all(parts):
        raise MalformedKeyError("an API key looks like lf_<namespace>_<tenant>_<id>_<secret>")
    return KeyName(*parts[1:4])


def key_digest(key: str) -> str:
    """SHA-256 of the whole key in hex: what a Tenant stores."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_matches(key: str, sha256: str) -> bool:
    """Constant-time check of a presented key against a stored digest."""
    return hmac.compare_digest(key_digest(key), sha256)


def _base62(number: int) -> str:
    digits = []
    for _ in range(_SECRET_LENGTH):
        number, rest = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))
