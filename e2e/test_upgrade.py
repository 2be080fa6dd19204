"""An upgrade with newer CRDs and a rollback: answers before, between and after, and no engine is touched."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client
from e2e.engines import POOL
from e2e.fleet import CHART, DEMO, KINDS, NAMESPACE, Fleet, forwarded
from e2e.quickstart import Keys
from lorafleet_contracts.names import LABEL_POOL

NEW_FIELD = "trainedOn"  # of a LoraAdapter's spec: stands for whatever the next version adds
CRD = "loraadapters.lorafleet.io"
LEVEL = "LORAFLEET_LOG_LEVEL"


def spec_fields(crd: dict[str, Any]) -> dict[str, Any]:
    """The schemas of the fields of a LoraAdapter's spec."""
    (version,) = crd["spec"]["versions"]
    fields: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return fields


def older_crd() -> dict[str, Any]:
    """LoraAdapter as a version before had it: without the field."""
    crd: dict[str, Any] = yaml.safe_load((CHART / "crds" / "loraadapters.yaml").read_text())
    del spec_fields(crd)[NEW_FIELD]
    return crd


def level(fleet: Fleet, part: str) -> str:
    """A setting by which the two revisions differ, as the pods have it."""
    found = fleet.get("deployment", f"lorafleet-{part}", NAMESPACE)
    assert found
    assert found["status"]["updatedReplicas"] == found["status"]["readyReplicas"] == found["spec"]["replicas"]
    env = found["spec"]["template"]["spec"]["containers"][0]["env"]
    return str(next(each["value"] for each in env if each["name"] == LEVEL))


def engines(fleet: Fleet) -> dict[str, tuple[str, int]]:
    """Each engine pod with its uid and how often it was restarted."""
    pods = fleet.list("pods", DEMO, f"{LABEL_POOL}={POOL}")
    return {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in pods
    }


def check_answers(fleet: Fleet, keys: Keys) -> None:
    """Each adapter in its style; a port-forward of its own, since gateway pods come and go here."""
    with forwarded(fleet.kubectl, "svc/lorafleet-gateway", 8080, NAMESPACE) as address:
        assert style_of(Client(address, keys.acme).ask("pirate", UNSEEN[0])) == "pirate"
        assert style_of(Client(address, keys.globex).ask("support", UNSEEN[0])) == "support"


@pytest.fixture
def older(fleet: Fleet, keys: Keys) -> Iterator[None]:
    """The installation with the older CRD, in use."""
    fleet.kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(older_crd()))
    found = fleet.get("crd", CRD, DEMO)
    assert found
    assert NEW_FIELD not in spec_fields(found)
    yield
    fleet.install()


def test_upgrade_and_rollback_leave_engines_and_objects_alone(fleet: Fleet, keys: Keys, older: None) -> None:
    before, objects = engines(fleet), {kind: fleet.list(kind) for kind in KINDS}
    check_answers(fleet, keys)

    fleet.install("operator.logLevel=DEBUG", "gateway.logLevel=DEBUG")
    found = fleet.get("crd", CRD, DEMO)
    assert found
    assert NEW_FIELD in spec_fields(found)
    assert (level(fleet, "operator"), level(fleet, "gateway")) == ("DEBUG", "DEBUG")
    fleet.wait_ready(seconds=30)
    check_answers(fleet, keys)

    fleet.roll_back()
    assert (level(fleet, "operator"), level(fleet, "gateway")) == ("INFO", "INFO")
    fleet.wait_ready(seconds=30)
    check_answers(fleet, keys)

    assert engines(fleet) == before
    for kind, old in objects.items():
        new = fleet.list(kind)
        assert [each["metadata"]["uid"] for each in new] == [each["metadata"]["uid"] for each in old]
        assert [each["spec"] for each in new] == [each["spec"] for each in old]
