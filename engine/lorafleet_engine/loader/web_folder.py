"""A folder behind a web server: one GET a file, resumed where it breaks off, no listing. Opened by loader/sources.py.

What differs between kinds of servers is a Site: addresses, headers, whether redirects belong to the protocol. Nothing
here is told more of an answer than its status and a few headers: bodies of refusals are a stranger's text.
"""

import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urljoin, urlsplit

import httpx
import orjson

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.streams import GRACE_SECONDS, Transfer, plain_segment

ATTEMPTS = 4
"""How often a file that breaks off is asked for, each time from where it broke off."""
REDIRECTS = 5
SMALL_SECONDS = 60.0
GONE = (httpx.codes.NOT_FOUND, httpx.codes.GONE)
DENIED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
Validators = tuple[str | None, ...]


class Site(Protocol):
    """Where files are, by name. `absence` says that one is not there, `advice` what to do about a denial.

    `follows`: redirects to other hosts belong to the protocol (they get no credentials). `fixed`: what an address names
    never changes.
    """

    absence: str
    advice: str
    follows: bool
    fixed: bool

    def url(self, name: str) -> str | None:
        """The address of a file, None when there is none of this name. Raises JobError."""
        ...

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        """What a request of this address must say."""
        ...

    def is_absent(self, status: int, *, read_before: bool) -> bool:
        """Whether an answer means that there is no such file, `read_before` if another has been read here."""
        ...

    def hint(self, response: httpx.Response) -> str:
        """What an answer that is no file says about its reason, "" for nothing."""
        ...


class PlainSite:
    """Files below one address."""

    absence = "HTTP 404"
    advice = "credentialsSecretRef can name a Secret with a token"
    follows = False
    fixed = False

    def __init__(self, uri: str, token: str = "") -> None:
        self._uri = uri.rstrip("/") + "/"
        self._token = token

    def url(self, name: str) -> str | None:
        """See Site."""
        return self._uri + quote(name, safe="")  # an index may name `%2e%2e%2f...` or a query

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        """See Site."""
        return {"authorization": f"Bearer {self._token}"} if self._token else {}

    def is_absent(self, status: int, *, read_before: bool) -> bool:
        """See Site."""
        return status in GONE

    def hint(self, response: httpx.Response) -> str:
        """See Site."""
        return ""


class WebFolder:
    """The files of a site. `grace`: seconds before slowness counts."""

    def __init__(self, site: Site, client: httpx.Client, grace: float = GRACE_SECONDS) -> None:
        self.absence = site.absence
        self._site = site
        self._client = client
        self._grace = grace
        self._fetched: dict[str, Validators | None] = {}

    def close(self) -> None:
        """See Folder."""
        self._client.close()

    def fetch(self, name: str, target: Path, limit: int) -> str | None:
        """See Folder."""
        try:
            url = self._site.url(plain_segment(name))
            if url is None:
                return None
            return self._fetch(name, url, target, limit)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise unreachable(name, error) from error

    def changed(self) -> str | None:
        """See Folder. Asks for heads; a server that knows none, or no validators, is believed."""
        if self._site.fixed:
            return None
        try:
            for name, validators in self._fetched.items():
                url = self._site.url(name) or ""
                headers = {"accept-encoding": "identity", **self._site.headers("HEAD", url)}
                answer = self._client.head(url, headers=headers)
                known = answer.status_code in (httpx.codes.OK, *GONE)
                if known and _validators_of(answer) != validators:
                    return name
        except httpx.HTTPError as error:
            raise unreachable("a head", error) from error
        return None

    def _fetch(self, name: str, url: str, target: Path, limit: int) -> str | None:
        transfer: Transfer | None = None
        try:
            for attempt in range(ATTEMPTS):
                if attempt and (transfer is None or transfer.size == 0):
                    break
                response = self._ask(name, url, transfer)
                try:
                    if self._note(name, response):
                        return None
                    transfer = transfer or Transfer(name, target, limit, self._grace)
                    self._begin(response, transfer)
                    transfer.take(response.iter_raw())
                    return transfer.finish()
                except (httpx.RemoteProtocolError, httpx.ReadError, httpx.ReadTimeout) as error:
                    failure = error
                finally:
                    response.close()
            raise JobError(
                ProblemCode.SOURCE_UNREACHABLE,
                f"the source broke {name} off after {transfer.size if transfer else 0} bytes, {attempt} times over "
                f"({type(failure).__name__}); check the server and the network to it",
            ) from failure
        finally:
            if transfer is not None:
                transfer.close()

    def _ask(self, name: str, url: str, transfer: Transfer | None) -> httpx.Response:
        """The answer to a GET, its body not yet read. Raises JobError or httpx.HTTPError."""
        headers = {"accept-encoding": "identity", **self._site.headers("GET", url)}
        etag = (self._fetched.get(name) or ("",))[0] or ""
        if transfer is not None and transfer.size and etag and not etag.startswith("W/"):
            headers |= {"range": f"bytes={transfer.size}-", "if-range": etag}
        for _ in range(REDIRECTS):
            response = self._client.send(self._client.build_request("GET", url, headers=headers), stream=True)
            if not (response.is_redirect and self._site.follows):
                return response
            response.close()
            target = urljoin(url, response.headers.get("location", ""))
            if urlsplit(target).scheme != "https" and urlsplit(target)[:2] != urlsplit(url)[:2]:
                raise JobError(ProblemCode.SOURCE_FORBIDDEN, f"the source redirects {name} to an address without TLS")
            if urlsplit(target)[:2] != urlsplit(url)[:2]:
                headers = {key: value for key, value in headers.items() if key.lower() != "authorization"}
            url = target
        raise JobError(ProblemCode.SOURCE_FORBIDDEN, f"the source redirects {name} more than {REDIRECTS} times")

    def _note(self, name: str, response: httpx.Response) -> bool:
        """Whether there is no such file; its validators are kept. Raises JobError for an answer that is no file."""
        status = response.status_code
        read_before = any(self._fetched.values())
        if self._site.is_absent(status, read_before=read_before):
            self._fetched[name] = None
            return True
        if response.is_redirect:
            raise JobError(
                ProblemCode.SOURCE_FORBIDDEN,
                f"the source answers {name} with a redirect, which is not followed{_after(self._site.hint(response))}",
            )
        if status in DENIED:
            said = f"the source answers {name} with HTTP {status}{_after(self._site.hint(response))}"
            raise JobError(ProblemCode.SOURCE_DENIED, f"{said}; {self._site.advice}")
        if status not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            said = f"the source answers {name} with HTTP {status}{_after(self._site.hint(response))}"
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, said)
        if response.headers.get("content-encoding", "identity") != "identity":
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the source sends {name} compressed although asked not to")
        if status == httpx.codes.OK:
            self._fetched[name] = _validators_of(response)
        return False

    def _begin(self, response: httpx.Response, transfer: Transfer) -> None:
        """Place the answer: a part goes on where the last one broke off, a whole file begins anew. Raises JobError."""
        announced = response.headers.get("content-length", "")
        length = int(announced) if announced.isascii() and announced.isdecimal() else 0
        if response.status_code == httpx.codes.PARTIAL_CONTENT:
            if not response.headers.get("content-range", "").startswith(f"bytes {transfer.size}-"):
                raise JobError(
                    ProblemCode.SOURCE_UNREACHABLE, f"the source sends another part of {transfer.name} than asked for"
                )
            transfer.announce(transfer.size + length)
        else:
            transfer.restart()
            transfer.announce(length)


def read_small(client: httpx.Client, url: str, headers: Mapping[str, str], limit: int) -> tuple[int, bytes]:
    """Status and body of a small document. Raises JobError above `limit` bytes or a minute, or httpx.HTTPError."""
    body, until = bytearray(), time.monotonic() + SMALL_SECONDS
    with client.stream("GET", url, headers={"accept-encoding": "identity", **headers}) as response:
        for piece in response.iter_raw():
            body += piece
            if len(body) > limit:
                raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the source sends more than {limit} bytes of metadata")
            if time.monotonic() > until:
                raise JobError(ProblemCode.SOURCE_UNREACHABLE, "the source's metadata take more than a minute")
        return response.status_code, bytes(body)


def json_object(body: bytes) -> dict[str, object]:
    """A JSON object; an empty one for anything else."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def unreachable(what: str, error: Exception) -> JobError:
    """What a failed request means, in words that say what to do."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return JobError(
            ProblemCode.SOURCE_UNREACHABLE,
            f"{what} cannot be fetched: the server's certificate is not trusted ({cause.verify_message}); the pool's "
            "owner can name its CA in sources.caBundle",
        )
    if cause is not None:
        return JobError(ProblemCode.SOURCE_UNREACHABLE, f"{what} cannot be fetched: no TLS with the server: {cause}")
    return JobError(ProblemCode.SOURCE_UNREACHABLE, f"{what} cannot be fetched: {type(error).__name__}: {error}")


def _after(hint: str) -> str:
    return f" ({hint})" if hint else ""


def _validators_of(response: httpx.Response) -> Validators | None:
    if response.status_code in GONE:
        return None
    return tuple(response.headers.get(name) for name in ("etag", "last-modified", "content-length"))
