"""Where adapters may come from, and what an engine is told about it. Called by admission, planning and manifests; pure.

What a spec says is hostile: an address counts only where it is plain and a rule of the pool covers it. Which machine
answers under a name is the engine's to judge (loader/egress.py), by what the rule allows.
"""

import hashlib
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from lorafleet_contracts.admin import SourceAccess, SourceSpec
from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_contracts.resources.sources import SourceRule
from lorafleet_operator.core.conditions import Refusal
from lorafleet_operator.core.snapshot import Meta

MARK_DIGITS = 16
_ESCAPED = ("%2e", "%2f", "%5c", "%00")
_DOTS = frozenset({".", ".."})
_WITH_VERSION = ("hf", "oci")
"""Schemes whose addresses end in a version: `@revision`, `@sha256:...` or `:tag`."""


def refuse_source(uri: str, namespace: str, pool: Meta, spec: LoraPoolSpec) -> Refusal | None:
    """Why the pool's policy forbids an address, or None."""
    if _is_devious(uri):
        return _not_allowed(f"{uri} is not plain: no user, query, fragment, escape or `..`")
    parts = urlsplit(uri)
    if parts.scheme == "pvc":
        volumes = sorted(str(volume.get("name", "")) for volume in spec.engine.pod.volumes)
        if parts.netloc not in volumes:
            return _not_allowed(f"pool {pool.name} has no volume {parts.netloc!r}, only {', '.join(volumes) or 'none'}")
    rules = spec.sources.allow
    if not rules and parts.scheme == "pvc" and namespace == pool.namespace:
        return None
    if any(_covers(rule, uri, namespace) for rule in rules):
        return None
    return _not_allowed(
        f"pool {pool.namespace}/{pool.name} does not allow {uri} for namespace {namespace}. "
        "Its owner can list a prefix in sources.allow"
    )


def source_of(uri: str, namespace: str, spec: LoraPoolSpec) -> SourceSpec:
    """What an engine is told of an adapter's source."""
    private = any(rule.private and _covers(rule, uri, namespace) for rule in spec.sources.allow)
    signers = tuple(each.public_key for each in spec.trust.signers)
    return SourceSpec(uri=uri, access=_access(uri, spec).model_copy(update={"private": private}), signers=signers)


def trust_mark(signers: Iterable[str]) -> str:
    """What tells one set of signers' keys from another, "" for none."""
    keys = sorted(each.strip() for each in signers)
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()[:MARK_DIGITS] if keys else ""


def base_access(spec: LoraPoolSpec) -> SourceAccess:
    """What an engine is told of the base model's source."""
    return _access(spec.base_model.source.uri, spec)


def _access(uri: str, spec: LoraPoolSpec) -> SourceAccess:
    sources, scheme = spec.sources, urlsplit(uri).scheme
    trusted = sources.ca_bundle or ""
    match scheme:
        case "s3":
            server = sources.s3
            trusted = server.ca_bundle or trusted
            return SourceAccess(endpoint=server.endpoint or "", region=server.region, ca_bundle=trusted)
        case "hf":
            return SourceAccess(endpoint=sources.hf.endpoint if sources.hf else "", ca_bundle=trusted)
        case "https" | "oci":
            return SourceAccess(ca_bundle=trusted)
        case _:
            return SourceAccess()


def _not_allowed(message: str) -> Refusal:
    return Refusal(Reason.SOURCE_NOT_ALLOWED, message)


def _is_devious(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        return True
    lowered = uri.lower()
    return (
        "@" in parts.netloc
        or bool(parts.query or parts.fragment)
        or "\\" in uri
        or not uri.isprintable()
        or any(escape in lowered for escape in _ESCAPED)
        or not _DOTS.isdisjoint(parts.path.split("/"))
    )


def _covers(rule: SourceRule, uri: str, namespace: str) -> bool:
    if rule.namespaces and namespace not in rule.namespaces:
        return False
    allowed, asked = urlsplit(rule.prefix), urlsplit(uri)
    if (allowed.scheme, allowed.netloc.lower()) != (asked.scheme, asked.netloc.lower()):
        return False
    path = allowed.path.rstrip("/")
    # A prefix ends at a path segment: `/acme` must not open `/acme-secret`.
    return asked.path == path or asked.path.startswith(f"{path}/") or _is_version_of(path, asked)


def _is_version_of(path: str, asked: SplitResult) -> bool:
    """Whether a rule for a whole repository covers one version of it."""
    rest = asked.path.removeprefix(path)
    return asked.scheme in _WITH_VERSION and asked.path.startswith(path) and rest[:1] in ("@", ":") and "/" not in rest
