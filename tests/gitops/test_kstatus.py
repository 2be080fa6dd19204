"""What a Flux Kustomization that waits takes every state for. kstatus and Flux's CEL library run, from the Go proxy."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from e2e.cluster.binaries import locate
from e2e.cluster.paths import REPOSITORY, find_cache
from tests.gitops.states import KSTATUS, State, all_states

pytestmark = pytest.mark.apiserver


def judged(states: Sequence[State], checks: Sequence[dict[str, Any]] = ()) -> dict[str, str]:
    """The verdict on each, by the `healthCheckExprs` of a Kustomization where they name its kind."""
    objects = "\n".join(json.dumps(state.manifest) for state in states)
    command = [str(locate(find_cache(), "kstatus")), json.dumps(checks)]
    done = subprocess.run(command, input=objects, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip([f"{state.kind} {state.name}" for state in states], done.stdout.split(), strict=True))


def test_every_state_is_what_flux_should_take_it_for() -> None:
    states = all_states()
    assert judged(states) == {f"{state.kind} {state.name}": KSTATUS[state.health] for state in states}


def test_the_examples_checks_take_a_suspended_adapter_for_done_and_change_nothing_else() -> None:
    documents = yaml.safe_load_all((REPOSITORY / "examples" / "flux" / "fleet.yaml").read_text())
    (checks,) = (each["spec"]["healthCheckExprs"] for each in documents if each["kind"] == "Kustomization")
    states = all_states()
    suspended = {f"{state.kind} {state.name}" for state in states if state.health == "Suspended"}
    assert suspended
    assert judged(states, checks) == judged(states) | dict.fromkeys(suspended, "Current")
