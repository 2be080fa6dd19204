"""Argo CD's health checks of our kinds, run by Lua 5.1 (what Argo CD's interpreter implements) on what core says."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime  # type: ignore[import-untyped]

from lorafleet_contracts.crd import KINDS
from tests.gitops.states import HEALTH, State, all_states, rendered

STATES = all_states()


def assess(kind: str, manifest: dict[str, Any]) -> dict[str, str]:
    """What health.lua of the kind says, as Argo CD runs it: `obj` is the only global, without libraries for I/O."""
    lua = LuaRuntime(unpack_returned_tuples=True, register_eval=False)
    lua.execute("os, io, require, package, debug, loadfile, dofile = nil")
    lua.globals().obj = lua.table_from(manifest, recursive=True)
    return dict(lua.execute((HEALTH / kind / "health.lua").read_text()).items())


def test_the_fixtures_are_what_the_operator_says() -> None:
    committed = {path: path.read_text() for path in HEALTH.rglob("*.yaml")}
    assert committed == rendered(), "run python -m tests.gitops.states"


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_every_health_is_reached(kind: str) -> None:
    reached = {state.health for state in STATES if state.kind == kind}
    assert reached >= {"Progressing", "Healthy", "Degraded"}


@pytest.mark.parametrize("state", STATES, ids=lambda state: f"{state.kind}-{state.name}")
def test_health(state: State) -> None:
    assert assess(state.kind, dict(state.manifest)) == {"status": state.health, "message": state.message}


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_argo_cd_s_own_test_file_lists_them_all(kind: str) -> None:
    listed = yaml.safe_load((HEALTH / kind / "health_test.yaml").read_text())["tests"]
    there = {str(path.relative_to(HEALTH / kind)) for path in Path(HEALTH / kind / "testdata").iterdir()}
    assert {each["inputPath"] for each in listed} == there


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
@pytest.mark.parametrize("status", [{}, {"observedGeneration": 1}, {"observedGeneration": 1, "conditions": []}])
def test_a_half_written_status_is_progress(kind: str, status: dict[str, Any]) -> None:
    manifest = {"metadata": {"generation": 1}, "status": status}
    assert assess(kind, manifest)["status"] == "Progressing"
    assert assess(kind, {"metadata": {"generation": 1}})["status"] == "Progressing"
