"""Reads LoraPools, LoraAdapters and Tenants from YAML files as a cluster would take them. Called by `lorafleet plan`.

Every error names file, object and field. Other kinds are passed over, so that a whole GitOps folder will do.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from lorafleet_contracts.names import GROUP
from lorafleet_contracts.resources.adapter import LoraAdapterSpec, LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_contracts.resources.tenant import TenantSpec
from lorafleet_operator.core.snapshot import Adapter, Pool, Tenant
from lorafleet_operator.shell.records import read_adapter, read_pool, read_tenant

SUFFIXES = {".yaml", ".yml", ".json"}
DEFAULT_NAMESPACE = "default"
_CREATED = "2026-01-01T00:00:00Z"
_SPECS: Mapping[str, type[BaseModel]] = {"LoraPool": LoraPoolSpec, "LoraAdapter": LoraAdapterSpec, "Tenant": TenantSpec}

Object = dict[str, Any]


class ManifestError(Exception):
    """Manifests can't be planned; the message names file, object and field."""


@dataclass(slots=True)
class Manifests:
    """What was read, in the order of file names and documents. `known` are statuses of adapters that a cluster wrote
    (ranks and bytes of verified files), by uid; the objects themselves begin without any."""

    pools: list[Pool] = field(default_factory=list)
    adapters: list[Adapter] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    known: dict[str, LoraAdapterStatus] = field(default_factory=dict)


def read_manifests(path: Path) -> Manifests:
    """All of a file, or of the YAML and JSON files below a folder. Raises ManifestError."""
    found, seen = Manifests(), dict[tuple[str, str, str], str]()
    for place, document in _documents(path):
        kind = document.get("kind")
        if kind == "Namespace":
            meta = document.get("metadata") or {}
            found.namespaces[str(meta.get("name", ""))] = dict(meta.get("labels") or {})
        if kind in _SPECS and str(document.get("apiVersion", "")).startswith(f"{GROUP}/"):
            _add(found, seen, place, document)
    for _, namespace, _ in seen:
        found.namespaces.setdefault(namespace, {})
    return found


def choose_pool(found: Manifests, wanted: str | None) -> tuple[Pool, tuple[Adapter, ...], tuple[Tenant, ...]]:
    """One pool with what points to it. `wanted` is a name or namespace/name. Raises ManifestError."""
    names = [f"{each.meta.namespace}/{each.meta.name}" for each in found.pools]
    matching = [pool for pool, name in zip(found.pools, names, strict=True) if wanted in (None, name, pool.meta.name)]
    if not found.pools:
        raise ManifestError("there is no LoraPool in the manifests; nothing can be planned without one")
    if len(matching) != 1:
        raise ManifestError(
            f"{'no' if not matching else 'more than one'} such pool; choose one by --pool: {', '.join(names)}"
        )
    pool = matching[0]
    key = (pool.meta.namespace, pool.meta.name)
    return (
        pool,
        tuple(each for each in found.adapters if each.pool == key),
        tuple(each for each in found.tenants if each.pool == key),
    )


def _documents(path: Path) -> Iterator[tuple[str, Object]]:
    if not path.exists():
        raise ManifestError(f"{path}: no such file or folder")
    files = sorted(each for each in path.rglob("*") if each.suffix in SUFFIXES) if path.is_dir() else [path]
    for file in files:
        try:
            documents = list(yaml.safe_load_all(file.read_text()))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ManifestError(f"{file}: {error}") from error
        for number, document in enumerate(documents, start=1):
            place = str(file) if len(documents) == 1 else f"{file}, document {number}"
            for each in _unfold(document):
                yield place, each


def _unfold(document: Any) -> Iterator[Object]:
    """A document, or the items of a List as `kubectl get -o yaml` prints it."""
    if not isinstance(document, dict):
        return
    items = document.get("items")
    if isinstance(items, list) and str(document.get("kind", "")).endswith("List"):
        yield from (each for each in items if isinstance(each, dict))
    else:
        yield document


def _add(found: Manifests, seen: dict[tuple[str, str, str], str], place: str, document: Object) -> None:
    kind, meta = str(document["kind"]), document.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    if not isinstance(name, str) or not name:
        raise ManifestError(f"{place}: {kind}: metadata.name is missing")
    namespace = str(meta.get("namespace") or DEFAULT_NAMESPACE) if isinstance(meta, dict) else DEFAULT_NAMESPACE
    key, title = (kind, namespace, name), f"{place}: {kind} {namespace}/{name}"
    if key in seen:
        raise ManifestError(f"{title}: the same object is also in {seen[key]}")
    seen[key] = place
    _validate(title, _SPECS[kind], document.get("spec"))
    uid = str(uuid.uuid5(uuid.NAMESPACE_URL, "/".join(key)))
    labels = dict(meta.get("labels") or {}) if isinstance(meta, dict) else {}
    fresh = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "uid": uid,
            "generation": 1,
            "creationTimestamp": _CREATED,
        },
        "spec": document["spec"],
    }
    if kind == "LoraPool":
        found.pools.append(read_pool(fresh).value)
    elif kind == "Tenant":
        found.tenants.append(read_tenant(fresh).value)
    else:
        found.adapters.append(read_adapter(fresh).value)
        if document.get("status"):
            found.known[uid] = read_adapter(fresh | {"status": document["status"]}).value.status


def _validate(title: str, model: type[BaseModel], spec: Any) -> None:
    try:
        model.model_validate(spec)
    except ValidationError as error:
        first, *more = error.errors()
        where = ".".join(("spec", *(str(part) for part in first["loc"])))
        rest = f" (and {len(more)} more)" if more else ""
        raise ManifestError(f"{title}: {where}: {first['msg']}{rest}") from error
