"""A model repository of the Hugging Face Hub (`hf://org/name@revision`). Opened by loader/sources.py.

Two requests of the Hub's protocol: which commit a revision is, then the files of that commit, so that they are all of
one version. huggingface_hub is not used: its downloads (hf-xet among them) connect past loader/egress.py.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import httpx

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.loader.web_folder import DENIED, GONE, json_object, read_small, unreachable

PUBLIC = "https://huggingface.co"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
MOST_BYTES = 16 << 20
ADVICE = "the repository may be private or gated: credentialsSecretRef can name a Secret with a token that may read it"


class HubSite:
    """See Site. The commit is asked for with the first file."""

    absence = "not in this revision"
    advice = ADVICE
    follows = True
    fixed = True

    def __init__(self, origin: Origin, client: httpx.Client) -> None:
        parts = urlsplit(origin.uri)
        name, _, revision = parts.path.strip("/").partition("@")
        revision = revision or "main"
        if not (NAME.fullmatch(parts.netloc) and NAME.fullmatch(name) and REVISION.fullmatch(revision)):
            raise JobError(ProblemCode.INVALID_REQUEST, "an hf source is hf://ORG/NAME or hf://ORG/NAME@REVISION")
        if ".." in revision:
            raise JobError(ProblemCode.SOURCE_FORBIDDEN, "a revision has no ..")
        self._repository = f"{parts.netloc}/{name}"
        self._revision = revision
        self._root = (origin.endpoint or PUBLIC).rstrip("/")
        self._token = origin.credentials.token
        self._client = client
        self._commit = ""

    def url(self, name: str) -> str | None:
        """See Site."""
        self._commit = self._commit or self._find_commit()
        return f"{self._root}/{self._repository}/resolve/{self._commit}/{quote(name)}"

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        """See Site."""
        return {"authorization": f"Bearer {self._token}"} if self._token else {}

    def is_absent(self, status: int, *, read_before: bool) -> bool:
        """See Site."""
        return status in GONE

    def hint(self, response: httpx.Response) -> str:
        """See Site."""
        code = response.headers.get("x-error-code", "")
        return code if NAME.fullmatch(code) else ""

    def _find_commit(self) -> str:
        what = f"revision {self._revision} of {self._repository}"
        url = f"{self._root}/api/models/{self._repository}/revision/{quote(self._revision, safe='')}"
        try:
            status, body = read_small(self._client, url, self.headers("GET", url), MOST_BYTES)
        except httpx.HTTPError as error:
            raise unreachable(what, error) from error
        if status in DENIED:
            raise JobError(ProblemCode.SOURCE_DENIED, f"the Hub answers {what} with HTTP {status}; {ADVICE}")
        if status in GONE:
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the Hub has no {what} (HTTP {status})")
        commit = json_object(body).get("sha") if status == httpx.codes.OK else None
        if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the Hub names no commit for {what} (HTTP {status})")
        return commit
