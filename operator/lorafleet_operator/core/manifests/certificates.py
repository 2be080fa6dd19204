"""Objects around the engines' certificates: a pool's Secret, and in the operator's namespace the authority, whom to
trust and the gateway's certificate. Contents of Secrets are never printed or diffed."""

import base64
from collections.abc import Sequence
from typing import Any

from lorafleet_contracts.names import ENGINE_CA, ENGINE_CA_KEY, tls_secret
from lorafleet_operator.core.manifests.identity import object_meta
from lorafleet_operator.core.snapshot import Certificate, Meta

MANAGED_BY = {"app.kubernetes.io/managed-by": "lorafleet-operator"}
"""Marks what the operator makes and renews; what bears another's name is left alone."""
Owners = Sequence[dict[str, Any]]


def build_certificate(pool: Meta, certificate: Certificate, roots: str) -> dict[str, Any]:
    """What a pool's engines speak TLS with, and whom to trust to know them."""
    return _secret(object_meta(pool, tls_secret(pool.name)), certificate, roots)


def build_home_certificate(
    place: tuple[str, str], owners: Owners, certificate: Certificate, roots: str
) -> dict[str, Any]:
    """The same kind of Secret, at (namespace, name) in the operator's namespace: the authority itself, or the
    gateway's."""
    return _secret(_home(place, owners), certificate, roots)


def build_trust(namespace: str, owners: Owners, roots: str) -> dict[str, Any]:
    """Whom to trust, for gateways and people."""
    meta = _home((namespace, ENGINE_CA), owners)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {ENGINE_CA_KEY: roots}}


def _home(place: tuple[str, str], owners: Owners) -> dict[str, Any]:
    return {"name": place[1], "namespace": place[0], "labels": MANAGED_BY, "ownerReferences": list(owners)}


def _secret(meta: dict[str, Any], certificate: Certificate, roots: str) -> dict[str, Any]:
    texts = {"tls.crt": certificate.chain, "tls.key": certificate.key, ENGINE_CA_KEY: roots}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": meta,
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in texts.items()},
    }
