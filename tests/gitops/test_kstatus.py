"""What kstatus, which Flux waits with, says of every state. The library itself runs, from the Go proxy."""

import json
import subprocess

import pytest

from e2e.cluster.binaries import locate
from e2e.cluster.paths import find_cache
from tests.gitops.states import KSTATUS, all_states

pytestmark = pytest.mark.apiserver


def test_every_state_is_what_flux_should_take_it_for() -> None:
    states = all_states()
    objects = "\n".join(json.dumps(state.manifest) for state in states)
    done = subprocess.run([locate(find_cache(), "kstatus")], input=objects, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = dict(zip([f"{state.kind} {state.name}" for state in states], done.stdout.split(), strict=True))
    assert said == {f"{state.kind} {state.name}": KSTATUS[state.health] for state in states}
