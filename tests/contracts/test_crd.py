from pathlib import Path

import pytest
from pydantic import BaseModel

from lorafleet_contracts.crd import KINDS, NotStructuralError, definition, structural
from lorafleet_contracts.resources.pool import LoraPoolSpec


class WithUnion(BaseModel):
    value: int | str


def walk(schema: dict[str, object]) -> list[dict[str, object]]:
    found = [schema]
    for key in ("properties",):
        for each in dict(schema.get(key, {})).values():  # type: ignore[call-overload]
            found += walk(each)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found += walk(schema[key])  # type: ignore[arg-type]
    return found


def test_unions_are_refused() -> None:
    with pytest.raises(NotStructuralError):
        structural(WithUnion)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_spec_list_map_and_string_is_bounded(kind: object) -> None:
    """CEL cost estimates and etcd both need it."""
    spec = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]  # type: ignore[arg-type]
    for schema in walk(spec):
        match schema["type"]:
            case "array":
                assert "maxItems" in schema, schema
            case "string":
                assert "maxLength" in schema or "enum" in schema or "format" in schema, schema
            case "object" if "additionalProperties" in schema:
                assert "maxProperties" in schema, schema


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_list_says_how_server_side_apply_merges_it(kind: object) -> None:
    """Lists without it are owned whole by whoever applied last, which nobody chose."""
    root = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]  # type: ignore[arg-type]
    silent = [each for each in walk(root) if each["type"] == "array" and "x-kubernetes-list-type" not in each]
    assert not silent


def test_defaults_of_the_schema_are_those_of_the_model() -> None:
    schema = structural(LoraPoolSpec)
    assert schema["properties"]["replicas"]["default"] == {
        "min": 1,
        "redundancy": 1,
        "mode": "Managed",
        "desired": 1,
        "scaleDownAfter": "5m",
    }
    assert schema["properties"]["allowedNamespaces"]["default"] == {"from": "Same"}
    assert schema["properties"]["replicas"]["properties"]["min"]["default"] == 1
    assert "default" not in schema["properties"]["baseModel"]


def load(name: str) -> dict[str, object]:
    """A script of crds/, run without its main."""
    path = Path(__file__).resolve().parents[2] / "crds" / name
    namespace: dict[str, object] = {"__file__": str(path), "__name__": "generate"}
    exec(path.read_text(), namespace)
    return namespace


def test_the_committed_crds_are_current() -> None:
    namespace = load("generate.py")
    rendered = namespace["rendered"]()  # type: ignore[operator]
    for folder in namespace["TARGETS"]:  # type: ignore[attr-defined]
        assert {path.name: path.read_text() for path in folder.glob("*.yaml")} == rendered, "run make crds"


def test_the_committed_reference_is_current() -> None:
    namespace = load("reference.py")
    assert namespace["TARGET"].read_text() == namespace["rendered"](), "run make crds"  # type: ignore[attr-defined,operator]
