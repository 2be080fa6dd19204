"""Where files come from and what may be done to get them, as one frozen value. Sent with the loader's jobs."""

from dataclasses import dataclass, field

from lorafleet_contracts.admin import SourceAccess, SourceSpec


@dataclass(frozen=True, slots=True)
class Credentials:
    """What opens a source: an S3 key, a bearer token, or a registry's user. Never printed."""

    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Origin:
    """A source: see SourceSpec and SourceAccess for the fields. `signers` are public keys in PEM; () = any or none."""

    uri: str
    private: bool = False
    endpoint: str = ""
    region: str = ""
    ca_bundle: str = ""
    credentials: Credentials = field(default=Credentials(), repr=False)
    signers: tuple[str, ...] = ()


def origin_of(source: SourceSpec) -> Origin:
    """The source that a request names."""
    opened = source.credentials
    return Origin(
        uri=source.uri,
        private=source.access.private,
        endpoint=source.access.endpoint,
        region=source.access.region,
        ca_bundle=source.access.ca_bundle,
        credentials=Credentials(**opened.model_dump()) if opened else Credentials(),
        signers=source.signers,
    )


def owners_origin(uri: str, access: SourceAccess) -> Origin:
    """A source that the pool's owner names: a private host is as good there as any."""
    return Origin(uri, True, access.endpoint, access.region, access.ca_bundle)
