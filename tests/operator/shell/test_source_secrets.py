"""What the operator takes out of a Secret for a source, and what it says where it may not or cannot."""

import base64
import json
from typing import Any

import pytest

from lorafleet_contracts.admin import InspectRequest, SourceCredentials, SourceSpec
from lorafleet_kube.errors import ApiError, UnreachableError
from lorafleet_operator.errors import CredentialsError
from lorafleet_operator.shell.source_secrets import SourceSecrets, credentials_of

LABELS = {"lorafleet.io/source-credentials": ""}
SECRET = ("team", "s3")


def encoded(**values: str) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}


S3 = encoded(accessKeyId="id-1", secretAccessKey="key-1\n", sessionToken="session-1", other="other-1")
DOCKER = {
    "auths": {
        "https://reg.test/v1/": {"auth": base64.b64encode(b"user-1:pass:1").decode()},
        "other.test": {"username": "user-2", "password": "pass-2"},
    }
}
LOGIN = {".dockerconfigjson": base64.b64encode(json.dumps(DOCKER).encode()).decode()}


class Api:
    """The API server, with one answer."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer = answer
        self.paths: list[str] = []

    async def get(self, path: str) -> dict[str, Any]:
        self.paths.append(path)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def read(answer: dict[str, Any] | Exception, uri: str = "s3://acme/a") -> SourceCredentials:
    return await SourceSecrets(Api(answer)).read(SECRET, uri)  # type: ignore[arg-type]  # only get() is used


async def test_a_labelled_secret_opens_a_bucket_and_is_never_printed() -> None:
    found = await read({"metadata": {"labels": LABELS}, "data": S3})
    assert (found.access_key_id, found.secret_access_key, found.session_token) == ("id-1", "key-1", "session-1")
    request = InspectRequest(generation=1, source=SourceSpec(uri="s3://acme/a", credentials=found))
    assert not any(word in repr(request) + str(found) for word in ("id-1", "key-1", "session-1"))
    assert "other-1" not in request.model_dump_json()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ApiError(404, "NotFound", "secret-word"), "create it, or correct"),
        (ApiError(403, "Forbidden", "secret-word"), "the chart's sourceSecrets"),
        (ApiError(500, "Odd", "secret-word"), "answers 500"),
        (UnreachableError("secret-word"), "gives no answer"),
        ({"metadata": {}, "data": S3}, "has no label lorafleet.io/source-credentials"),
        ({"metadata": {"labels": LABELS}}, "needs its key accessKeyId and secretAccessKey"),
        ({"metadata": {"labels": LABELS}, "data": {"accessKeyId": "secret-word"}}, "accessKeyId is no text"),
        (
            {"metadata": {"labels": LABELS}, "data": encoded(token="secret-word\nmore")},
            "token is not one line of ASCII",
        ),
        ({"metadata": {"labels": LABELS}, "data": encoded(token="secret-word-\xfc")}, "token is not one line of ASCII"),
    ],
)
async def test_refusals_say_what_to_do_and_quote_nothing(answer: dict[str, Any] | Exception, words: str) -> None:
    with pytest.raises(CredentialsError) as caught:
        await read(answer)
    assert words in str(caught.value)
    assert "secret-word" not in str(caught.value)


def test_only_the_login_of_the_registry_itself_is_taken() -> None:
    found = credentials_of(LOGIN, "oci://reg.test/acme/a:v1")
    assert (found.username, found.password) == ("user-1", "pass:1")
    assert credentials_of(LOGIN, "oci://other.test/a").username == "user-2"
    with pytest.raises(ValueError, match=r"no entry for evil\.test"):
        credentials_of(LOGIN, "oci://evil.test/a")


def test_a_token_only_travels_by_tls() -> None:
    token = encoded(token="t-1")
    for uri in ("https://a.test/x", "hf://acme/a@main", "oci://reg.test/a"):
        assert credentials_of(token, uri).token == "t-1"
    with pytest.raises(ValueError, match="only sent by TLS"):
        credentials_of(token, "http://a.test/x")
    with pytest.raises(ValueError, match="no key token"):
        credentials_of({}, "hf://acme/a")
