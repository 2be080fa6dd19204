"""Where a pool's adapters may come from, and what they must prove. Part of LoraPool's spec; pure data."""

from typing import Annotated

from pydantic import Field

from lorafleet_contracts.resources.schema import SET, NamespaceName, Resource, SourceUri, map_list

ServerUrl = Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+(/[^?#@\s]*)?$", max_length=1024)]
CaBundle = Annotated[str, Field(pattern=r"^-----BEGIN CERTIFICATE-----\s", max_length=32_768)]


class SourceRule(Resource):
    """Allows adapters from addresses with this prefix, for all admitted namespaces or for the named ones.

    Engines connect to public addresses. Those of private networks take `private`, or a host name without a dot or below
    `.svc`; any other address (loopback) must itself be the host of the prefix. Link-local ones are never connected to.
    """

    prefix: SourceUri
    namespaces: Annotated[list[NamespaceName], Field(max_length=64, json_schema_extra=SET)] = []
    private: bool = False


class S3Server(Resource):
    """The S3 server of `s3://` sources where it is not AWS, and its region."""

    endpoint: ServerUrl | None = None
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$", max_length=63)] = "us-east-1"
    ca_bundle: CaBundle | None = None


class HubServer(Resource):
    """The model hub of `hf://` sources where it is not huggingface.co."""

    endpoint: ServerUrl


class Sources(Resource):
    """Where adapters may come from; without `allow`, only `pvc://` and only for the pool's own namespace.

    `caBundle`: PEM certificates that are trusted beside the public ones; `s3.caBundle` is used for S3 in its place.
    """

    allow: Annotated[list[SourceRule], Field(max_length=64, json_schema_extra=map_list("prefix"))] = []
    ca_bundle: CaBundle | None = None
    s3: S3Server = S3Server()
    hf: HubServer | None = None


class Signer(Resource):
    """Somebody whose signature the pool accepts: an ECDSA public key in PEM (P-256, P-384 or P-521)."""

    public_key: Annotated[str, Field(pattern=r"^-----BEGIN PUBLIC KEY-----\s", min_length=1, max_length=1024)]


class Trust(Resource):
    """What adapters must prove. `requireDigest`: specs name the digest of their files, and what they were trained on by
    name. `signers`: files carry an OpenSSF model signature (`model.sig`) by one of them.
    """

    require_digest: bool = False
    signers: Annotated[list[Signer], Field(max_length=16, json_schema_extra=map_list("publicKey"))] = []
