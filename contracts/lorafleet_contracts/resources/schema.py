"""Building blocks of the resource models: the base class, CEL rules, shared field types. No defaults of its own."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from lorafleet_contracts.durations import DURATION_PATTERN

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
MODEL_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,126}$"
DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class Resource(BaseModel):
    """Base of every model that becomes part of a CRD: camelCase on the wire, frozen, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    def wire(self) -> dict[str, Any]:
        """The object as Kubernetes sees it: camelCase, absent instead of null."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules (expression, message) as an `x-kubernetes-validations` schema extra."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


def map_list(*keys: str) -> dict[str, Any]:
    """Marks a list as a map by these keys, so that server-side apply merges it entry by entry."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
"""Marks a list whose entries are merged by value: each manager owns those that it applied."""
ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
"""Marks a list that one manager owns whole, as Kubernetes has it for tolerations and for a selector's requirements."""

IMMUTABLE_POOL = rules(("self == oldSelf", "poolRef is immutable: delete the object and create it anew"))
PRESERVED: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}

Digest = Annotated[str, Field(pattern=DIGEST_PATTERN, max_length=71)]
ModelName = Annotated[str, Field(pattern=MODEL_NAME_PATTERN, min_length=1, max_length=127)]
ObjectName = Annotated[str, Field(pattern=DNS_SUBDOMAIN_PATTERN, min_length=1, max_length=63)]
NamespaceName = Annotated[str, Field(pattern=DNS_LABEL_PATTERN, min_length=1, max_length=63)]
SourceUri = Annotated[str, Field(pattern=r"^(pvc|file|https?|s3|hf|oci)://.+$", max_length=1024)]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$", max_length=32)]
Duration = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=8)]
SetName = Annotated[str, Field(pattern=DNS_LABEL_PATTERN, min_length=1, max_length=22)]
LabelMap = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)]


class PoolRef(Resource):
    """The LoraPool that serves this object; the namespace defaults to the object's own."""

    name: ObjectName
    namespace: NamespaceName | None = None


class LabelSelectorRequirement(Resource):
    """One requirement of a label selector."""

    key: Annotated[str, Field(min_length=1, max_length=317)]
    operator: Annotated[str, Field(pattern=r"^(In|NotIn|Exists|DoesNotExist)$", max_length=16)]
    values: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=64, json_schema_extra=ATOMIC)] = []


class LabelSelector(Resource):
    """A Kubernetes label selector; an empty one selects everything."""

    match_labels: LabelMap = {}
    match_expressions: Annotated[list[LabelSelectorRequirement], Field(max_length=16, json_schema_extra=ATOMIC)] = []
