"""The few requests of the OCI distribution protocol that reading and writing one artifact takes.

Used by oci_folder.py (reading, in the loader) and push/ (writing, on a person's machine). Always by TLS; a registry's
token service gets the credentials only by TLS, too. oras and its like are not used: they connect where they like.
"""

import base64
import hashlib
import re
import time
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import httpx

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.origin import Credentials
from lorafleet_engine.loader.web_folder import DENIED, json_object, read_small, unreachable

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MOST_BYTES = 4 << 20
TOKEN_SECONDS = 60
"""How long a token is good that does not say so, as the protocol has it."""
REPOSITORY = re.compile(r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PARAMETER = re.compile(r'([a-z]+)="([^"]*)"')
ADVICE = "credentialsSecretRef can name a Secret with a token or .dockerconfigjson for this registry"


@dataclass(frozen=True, slots=True)
class Reference:
    """A repository of a registry and what of it: a tag or a digest ("" for none)."""

    host: str
    repository: str
    version: str

    def __str__(self) -> str:
        mark = "@" if DIGEST.fullmatch(self.version) else ":"
        return f"{self.host}/{self.repository}{mark}{self.version}"


def read_reference(uri: str) -> Reference:
    """The reference in `oci://HOST/REPOSITORY[:TAG|@DIGEST]`. Raises JobError."""
    parts = urlsplit(uri)
    repository, at, version = parts.path.strip("/").partition("@")
    if not at:
        repository, _, version = repository.partition(":")
    legal = DIGEST.fullmatch(version) if at else (not version or TAG.fullmatch(version))
    if parts.scheme != "oci" or not parts.hostname or not REPOSITORY.fullmatch(repository) or not legal:
        raise JobError(
            ProblemCode.INVALID_REQUEST,
            "an oci source is oci://REGISTRY/REPOSITORY@sha256:DIGEST or oci://REGISTRY/REPOSITORY:TAG",
        )
    return Reference(parts.netloc, repository, version)


class Registry:
    """One repository of a registry, logged in to as the registry wants it. Not thread-safe."""

    def __init__(
        self, reference: Reference, client: httpx.Client, credentials: Credentials, actions: str = "pull"
    ) -> None:
        self.reference = reference
        self.root = f"https://{reference.host}/v2/{reference.repository}"
        self._client = client
        self._credentials = credentials
        self._scope = f"repository:{reference.repository}:{actions}"
        self._challenge: str | None = None
        self._token = ""
        self._until = 0.0

    def headers(self) -> dict[str, str]:
        """What opens the repository now. Raises JobError or httpx.HTTPError."""
        if self._challenge is None:
            self._challenge = self._ask()
        kind, _, parameters = self._challenge.partition(" ")
        if kind.lower() == "basic":
            return self._basic()
        if kind.lower() != "bearer":
            return {}
        if time.monotonic() >= self._until:
            self._renew(dict(PARAMETER.findall(parameters)))
        return {"authorization": f"Bearer {self._token}"}

    def manifest(self) -> dict[str, object]:
        """The manifest of the version. Raises JobError."""
        version, what = self.reference.version or "latest", str(self.reference)
        url = f"{self.root}/manifests/{version}"
        try:
            status, body = read_small(self._client, url, {"accept": MANIFEST, **self.headers()}, MOST_BYTES)
        except httpx.HTTPError as error:
            raise unreachable(what, error) from error
        if status in DENIED:
            raise JobError(ProblemCode.SOURCE_DENIED, f"the registry answers {what} with HTTP {status}; {ADVICE}")
        if status != httpx.codes.OK:
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the registry answers {what} with HTTP {status}")
        if DIGEST.fullmatch(version) and f"sha256:{hashlib.sha256(body).hexdigest()}" != version:
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the registry sends another manifest than {version}")
        return json_object(body)

    def _ask(self) -> str:
        """How the registry wants to be logged in to, "" for not at all."""
        with self._client.stream("GET", f"https://{self.reference.host}/v2/") as response:  # its body is not read
            if response.status_code == httpx.codes.UNAUTHORIZED:
                challenge: str = response.headers.get("www-authenticate", "")
                return challenge
        return ""

    def _basic(self) -> dict[str, str]:
        found = self._credentials
        if found.username:
            pair = base64.b64encode(f"{found.username}:{found.password}".encode()).decode()
            return {"authorization": f"Basic {pair}"}
        return {"authorization": f"Bearer {found.token}"} if found.token else {}

    def _renew(self, asked: dict[str, str]) -> None:
        realm = asked.get("realm", "")
        if urlsplit(realm).scheme != "https":
            raise JobError(ProblemCode.SOURCE_FORBIDDEN, "the registry's token service is not reached by TLS")
        query = urlencode({"service": asked.get("service", ""), "scope": self._scope})
        url = f"{realm}{'&' if urlsplit(realm).query else '?'}{query}"
        status, body = read_small(self._client, url, self._basic(), MOST_BYTES)
        if status in DENIED:
            raise JobError(ProblemCode.SOURCE_DENIED, f"the registry's token service answers HTTP {status}; {ADVICE}")
        answer = json_object(body)
        token, lasts = answer.get("token") or answer.get("access_token"), answer.get("expires_in")
        if status != httpx.codes.OK or not isinstance(token, str):
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the registry's token service gives none (HTTP {status})")
        seconds = lasts if isinstance(lasts, int) and lasts > 0 else TOKEN_SECONDS
        self._token, self._until = token, time.monotonic() + 0.8 * seconds
