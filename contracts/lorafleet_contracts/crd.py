"""Turns the resource models into CustomResourceDefinitions. Called by crds/generate.py and the drift test; pure.

Structural schemas know no $ref, no unions and no null: references are written out, `X | None` becomes an optional X,
and any other union is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from lorafleet_contracts.names import GROUP, VERSION
from lorafleet_contracts.resources.adapter import LoraAdapterSpec, LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolSpec, LoraPoolStatus
from lorafleet_contracts.resources.tenant import TenantSpec, TenantStatus

Schema = dict[str, Any]


class NotStructuralError(TypeError):
    """A model uses a type that a structural schema cannot say."""


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column of `kubectl get`; `wide` ones show with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Where the scale subresource reads and writes: JSON paths of replicas wanted and there, and of their selector."""

    wanted: str
    present: str
    selector: str


@dataclass(frozen=True, slots=True)
class Kind:
    """What a CRD says besides its schema. `name_limit` is in characters."""

    name: str
    plural: str
    short: str
    spec: type[BaseModel]
    status: type[BaseModel]
    columns: tuple[Column, ...]
    name_limit: int
    selectable: tuple[str, ...] = ()
    scale: Scale | None = None


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


UNSEEN: Schema = {"observedGeneration": -1}
"""The status of an object that the operator has not looked at: kstatus would call one without a status done."""

READY = Column("Ready", _condition("Ready", "status"))
REASON = Column("Reason", _condition("Ready", "reason"))
MESSAGE = Column("Message", _condition("Ready", "message"), wide=True)
AGE = Column("Age", ".metadata.creationTimestamp", "date")
POOL = Column("Pool", ".spec.poolRef.name")

KINDS = (
    Kind(
        "LoraPool",
        "lorapools",
        "lp",
        LoraPoolSpec,
        LoraPoolStatus,
        (
            Column("Base", ".spec.baseModel.name"),
            Column("Replicas", ".status.replicas", "integer"),
            Column("Available", ".status.readyReplicas", "integer"),
            READY,
            REASON,
            AGE,
            MESSAGE,
        ),
        name_limit=40,
        scale=Scale(".spec.replicas.desired", ".status.replicas", ".status.selector"),
    ),
    Kind(
        "LoraAdapter",
        "loraadapters",
        "la",
        LoraAdapterSpec,
        LoraAdapterStatus,
        (
            POOL,
            Column("Rank", ".status.rank", "integer"),
            Column("Resident", ".status.replicas.resident", "integer"),
            READY,
            REASON,
            AGE,
            Column("Model", ".spec.model", wide=True),
            Column("Digest", ".status.digest", wide=True),
            MESSAGE,
        ),
        name_limit=63,
        selectable=(".spec.poolRef.name",),
    ),
    Kind(
        "Tenant",
        "tenants",
        "lt",
        TenantSpec,
        TenantStatus,
        (
            POOL,
            Column("Adapters", ".status.adapters", "integer"),
            Column("Keys", ".status.keys", "integer"),
            READY,
            REASON,
            AGE,
            MESSAGE,
        ),
        name_limit=63,
        selectable=(".spec.poolRef.name",),
    ),
)


def definition(kind: Kind) -> Schema:
    """The CustomResourceDefinition of one kind."""
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": _subresources(kind),
        "additionalPrinterColumns": [_column(each) for each in kind.columns],
        "schema": {"openAPIV3Schema": _root(kind)},
    }
    if kind.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    names = {"kind": kind.name, "listKind": f"{kind.name}List", "plural": kind.plural, "singular": kind.name.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {**names, "shortNames": [kind.short], "categories": ["lorafleet"]},
            "versions": [version],
        },
    }


def _subresources(kind: Kind) -> Schema:
    if kind.scale is None:
        return {"status": {}}
    paths = {
        "specReplicasPath": kind.scale.wanted,
        "statusReplicasPath": kind.scale.present,
        "labelSelectorPath": kind.scale.selector,
    }
    return {"status": {}, "scale": paths}


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of a model, as the API server wants it."""
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, schema.get("$defs", {}))


def _root(kind: Kind) -> Schema:
    rule = f"size(self.metadata.name) <= {kind.name_limit}"
    message = f"a {kind.name}'s name may have at most {kind.name_limit} characters"
    return {
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": [{"rule": rule, "message": message}],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(kind.spec),
            "status": {**structural(kind.status), "default": UNSEEN},
        },
    }


def _column(column: Column) -> Schema:
    written: Schema = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**written, "priority": 1} if column.wide else written


def _convert(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    schema = _resolve(schema, definitions)
    result = {key: value for key, value in schema.items() if key in _KEPT or key.startswith("x-kubernetes-")}
    if "const" in schema:
        result["enum"] = [schema["const"]]
    if "properties" in schema:
        result["properties"] = {name: _convert(each, definitions) for name, each in schema["properties"].items()}
    if "items" in schema:
        result["items"] = _convert(schema["items"], definitions)
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(schema["additionalProperties"], definitions)
    if schema.get("default") not in _NOTHING:
        result["default"] = _without_nothing(schema["default"])
    if "type" not in result:
        raise NotStructuralError(f"no structural type for {schema}")
    return result


def _resolve(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Write out references and `X | None`; keys beside the reference win."""
    beside = {key: value for key, value in schema.items() if key not in ("$ref", "anyOf")}
    if "$ref" in schema:
        return {**_resolve(definitions[schema["$ref"].rpartition("/")[2]], definitions), **beside}
    if "anyOf" in schema:
        members = [each for each in schema["anyOf"] if each.get("type") != "null"]
        if len(members) != 1:
            raise NotStructuralError(f"a structural schema has no unions: {schema['anyOf']}")
        return {**_resolve(members[0], definitions), **beside}
    return dict(schema)


def _without_nothing(value: Any) -> Any:
    """A default as Kubernetes writes it: what says nothing is absent. Whole, because CEL rules see it unfilled."""
    if isinstance(value, dict):
        return {key: _without_nothing(each) for key, each in value.items() if each not in _NOTHING}
    return value


_NOTHING: tuple[Any, ...] = (None, [], {}, "")

_KEPT = frozenset(
    {
        "type",
        "description",
        "format",
        "enum",
        "pattern",
        "required",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "maxProperties",
    }
)
