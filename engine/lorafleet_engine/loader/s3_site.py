"""Objects below a prefix of an S3 bucket (`s3://bucket/prefix/`). Opened by loader/sources.py.

minio's client signs the requests; it does not send them, because only loader/egress.py may connect anywhere.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

import httpx
from minio.credentials.credentials import Credentials as Keys
from minio.signer import sign_v4_s3

from lorafleet_contracts.admin import ProblemCode
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.origin import Origin
from lorafleet_engine.loader.web_folder import DENIED, GONE

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
REGION = re.compile(r"[a-z0-9-]{1,63}")
UNSIGNED = "UNSIGNED-PAYLOAD"


class S3Site:
    """See Site. Without credentials requests are not signed: public buckets only."""

    absence = "S3 says that there is none"
    advice = (
        "the key of credentialsSecretRef must be valid and may s3:GetObject these objects, all of which must be there "
        "(without s3:ListBucket, S3 denies what does not exist)"
    )
    follows = False
    fixed = False

    def __init__(self, origin: Origin) -> None:
        parts = urlsplit(origin.uri)
        bucket, self._region = parts.netloc, origin.region or "us-east-1"
        if not BUCKET.fullmatch(bucket) or not REGION.fullmatch(self._region):
            raise JobError(ProblemCode.INVALID_REQUEST, f"{bucket!r} is no name of an S3 bucket")
        if origin.endpoint:
            self.root = f"{origin.endpoint.rstrip('/')}/{bucket}"
        elif "." in bucket:
            # No certificate covers such a bucket as a host.
            self.root = f"https://s3.{self._region}.amazonaws.com/{bucket}"
        else:
            self.root = f"https://{bucket}.s3.{self._region}.amazonaws.com"
        self._prefix = quote(parts.path.strip("/"), safe="/-_.~")
        found = origin.credentials
        self._keys = None
        if found.access_key_id:
            self._keys = Keys(found.access_key_id, found.secret_access_key, found.session_token or None)

    def url(self, name: str) -> str | None:
        """See Site."""
        return "/".join(part for part in (self.root, self._prefix, quote(name, safe="-_.~")) if part)

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        """See Site."""
        if self._keys is None:
            return {}
        address, now = httpx.URL(url), datetime.now(UTC)
        headers: dict[str, str | list[str] | tuple[str]] = {
            "host": address.netloc.decode(),
            "x-amz-content-sha256": UNSIGNED,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
        }
        if self._keys.session_token:
            headers["x-amz-security-token"] = self._keys.session_token
        signed = sign_v4_s3(
            method=method,
            url=urlsplit(str(address)),
            region=self._region,
            headers=headers,
            credentials=self._keys,
            content_sha256=UNSIGNED,
            date=now,
        )
        return {key: str(value) for key, value in signed.items()}

    def is_absent(self, status: int, *, read_before: bool) -> bool:
        """See Site. A key that may only read gets 403 for what does not exist; once it has read a file, it may read."""
        return status in GONE or (read_before and status in DENIED)

    def hint(self, response: httpx.Response) -> str:
        """See Site."""
        region = response.headers.get("x-amz-bucket-region", "")
        if REGION.fullmatch(region) and region != self._region:
            return f"the bucket is in region {region}, the pool's sources.s3.region says {self._region}"
        return ""
