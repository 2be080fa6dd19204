"""Reads the Secrets that adapters name for their sources. Called by calls.py; logs, keeps and tells nothing of them.

Only a Secret with the label is read, of the adapter's own namespace, where the chart's sourceSecrets grants it.
"""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from lorafleet_contracts.admin import SourceCredentials
from lorafleet_contracts.names import LABEL_CREDENTIALS
from lorafleet_kube.api import KubeApi
from lorafleet_kube.errors import ApiError, KubeError
from lorafleet_kube.paths import SECRETS
from lorafleet_operator.errors import CredentialsError

ReadCredentials = Callable[[tuple[str, str], str], Awaitable[SourceCredentials]]
"""From a Secret (namespace, name), what opens a source (its uri). Raises CredentialsError."""
DOCKER_CONFIG = ".dockerconfigjson"
S3_KEYS = ("accessKeyId", "secretAccessKey")
REASONS = {
    403: "the operator may not read Secrets of namespace {0}: its admin can list the namespace in the chart's "
    "sourceSecrets",
    404: "there is no Secret {1} in namespace {0}: create it, or correct spec.source.credentialsSecretRef",
}


class SourceSecrets:
    """Secrets of any namespace."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def read(self, secret: tuple[str, str], uri: str) -> SourceCredentials:
        """What a Secret (namespace, name) has for a source. Raises CredentialsError."""
        namespace, name = secret
        try:
            found = await self._api.get(SECRETS.path(namespace, name))
        except ApiError as error:
            told = REASONS.get(error.code, f"Secret {{0}}/{{1}} cannot be read: the API server answers {error.code}")
            raise CredentialsError(told.format(namespace, name)) from error
        except KubeError as error:
            raise CredentialsError(
                f"Secret {namespace}/{name} cannot be read: the API server gives no answer"
            ) from error
        if LABEL_CREDENTIALS not in (found["metadata"].get("labels") or {}):
            raise CredentialsError(
                f"Secret {namespace}/{name} has no label {LABEL_CREDENTIALS}: set it to say that engines may have it"
            )
        try:
            return credentials_of(found.get("data") or {}, uri)
        except ValueError as error:
            # Not `from error`: what cannot be read is part of a secret.
            raise CredentialsError(f"Secret {namespace}/{name}: {error}") from None


def credentials_of(data: Mapping[str, str], uri: str) -> SourceCredentials:
    """The part of a Secret's data that suits a source. Raises ValueError with what is missing, never with a value."""
    values = {key: _decoded(key, value) for key, value in data.items() if key in _KNOWN}
    for key in values.keys() - {DOCKER_CONFIG}:
        if not (values[key].isascii() and values[key].isprintable()):  # HTTP libraries quote what they cannot send
            raise ValueError(f"the value of {key} is not one line of ASCII")
    parts = urlsplit(uri)
    if parts.scheme == "s3":
        missing = [key for key in S3_KEYS if not values.get(key)]
        if missing:
            raise ValueError(f"an s3 source needs its key {' and '.join(missing)}")
        return SourceCredentials(
            access_key_id=values["accessKeyId"],
            secret_access_key=values["secretAccessKey"],
            session_token=values.get("sessionToken", ""),
        )
    if parts.scheme == "oci" and values.get(DOCKER_CONFIG):
        username, password = _registry_login(values[DOCKER_CONFIG], parts.netloc)
        return SourceCredentials(username=username, password=password)
    if not values.get("token"):
        raise ValueError("it has no key token" + (f" and no {DOCKER_CONFIG}" if parts.scheme == "oci" else ""))
    if parts.scheme == "http":
        raise ValueError("a token is only sent by TLS: use an https source")
    return SourceCredentials(token=values["token"])


_KNOWN = frozenset({*S3_KEYS, "sessionToken", "token", DOCKER_CONFIG})


def _decoded(key: str, value: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError(f"the value of {key} is no text") from None


def _registry_login(config: str, host: str) -> tuple[str, str]:
    try:
        entries: dict[str, Any] = orjson.loads(config)["auths"]
        entry = next((each for name, each in entries.items() if _registry_host(name) == host), None)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{DOCKER_CONFIG} is no docker configuration") from None
    if not isinstance(entry, dict):
        raise ValueError(f"{DOCKER_CONFIG} has no entry for {host}")
    if entry.get("username"):
        return str(entry["username"]), str(entry.get("password", ""))
    username, _, password = _decoded(DOCKER_CONFIG, str(entry.get("auth", ""))).partition(":")
    return username, password


def _registry_host(name: str) -> str:
    return name.removeprefix("https://").partition("/")[0]
