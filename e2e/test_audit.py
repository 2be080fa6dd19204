"""The audit log on a cluster: the operator's line of a load and the engine's have one request id."""

import json
from collections.abc import Iterator

import pytest

from e2e.engines import POOL
from e2e.fleet import DEMO, NAMESPACE, Fleet, Object, adapter, condition, holds
from e2e.quickstart import Keys
from e2e.waiting import wait_until
from lorafleet_contracts.names import LABEL_POOL

NAME = "audited"
OPERATORS = "app.kubernetes.io/component=operator"
ENGINES = f"{LABEL_POOL}={POOL}"


def audit_lines(fleet: Fleet, namespace: str, selector: str) -> list[Object]:
    """What the pods' audit logs say of the last minutes."""
    words = ("logs", "-n", namespace, "-l", selector, "--tail=-1", "--since=5m", "--max-log-requests=20")
    lines = [json.loads(line) for line in fleet.kubectl.run(*words).splitlines() if '.audit"' in line]
    return [line for line in lines if line["logger"].endswith(".audit")]


@pytest.fixture
def loaded(fleet: Fleet, keys: Keys) -> Iterator[str]:
    """A new adapter that is Ready; gives its version."""
    fleet.apply(adapter(NAME, source="robot"))
    wait_until(lambda: holds(fleet.get("loraadapter", NAME), "Ready"), seconds=60, what=f"{NAME} Ready")
    found = fleet.get("loraadapter", NAME)
    assert found, condition(found, "Ready")
    yield f"{found['metadata']['uid']}@{found['status']['digest']}"
    fleet.delete("loraadapter", NAME)


def test_an_act_is_told_at_both_ends_under_one_id(fleet: Fleet, loaded: str) -> None:
    acts = [each for each in audit_lines(fleet, NAMESPACE, OPERATORS) if each["object"] == loaded]
    load = next(each for each in acts if each["action"] == "load" and each["outcome"] == "done")
    assert load["adapter"] == f"{DEMO}/{NAME}"
    told = [each for each in audit_lines(fleet, DEMO, ENGINES) if each["request_id"] == load["request_id"]]
    assert told[-1]["object"] == loaded
    assert told[-1]["outcome"] == "done"
    assert told[-1]["actor"] == f"lorafleet-operator/{load['actor']}"
