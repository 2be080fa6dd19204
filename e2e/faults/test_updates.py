"""A new version under load: nothing fails, no stream mixes two; a bad one keeps the old; rolled back by apply."""

import pytest

from e2e.engines import POOL, engine_states
from e2e.faults.stage import Stage, Watch, fault, stalled
from e2e.fleet import Object, adapter, holds
from e2e.waiting import wait_until

pytestmark = pytest.mark.long

NAME = "shout"
KEY = f"loraadapters/{NAME}"


def manifest(files: str = f"adapters/{NAME}", **source: str) -> Object:
    """The adapter as it is on the stage, with these files of demo-assets."""
    made = adapter(NAME, minReplicas=2)
    made["spec"]["source"] = {"uri": f"http://demo-assets/{files}", **source}
    return made


def digest(stage: Stage) -> str:
    """The version that tenants get."""
    return str((stage.fleet.get("loraadapter", NAME) or {})["status"]["digest"])


def loaded(stage: Stage) -> set[str]:
    """The digests of the adapter's versions on any replica."""
    versions = [each for state in engine_states(stage.fleet).values() for each in state.versions]
    return {each.digest for each in versions if each.display and each.display.name == NAME}


def change(stage: Stage, watch: Watch, wanted: Object, style: str) -> None:
    """Apply a version that answers in `style`; returns when nothing but that version is left anywhere."""
    old = digest(stage)
    watch.witness.styles[NAME] |= {style}
    stage.fleet.apply(wanted)
    wait_until(lambda: digest(stage) != old, seconds=120, what="the new version serves")
    wait_until(lambda: loaded(stage) == {digest(stage)}, seconds=120, what="the old version is gone")
    watch.witness.styles[NAME] = frozenset({style})


def test_a_version_is_changed_and_rolled_back_under_load(stage: Stage) -> None:
    first = digest(stage)
    with fault(stage, "update", "a version changed, and rolled back by its old manifest", within=300) as watch:
        watch.changed.add(KEY)
        watch.broken()
        change(stage, watch, manifest("adapters/poet"), "poet")
        watch.seconds["changed"] = watch.since()
        watch.wait_for_answers(1)
        change(stage, watch, manifest(), NAME)
        watch.wait_for_answers(1)
    assert digest(stage) == first


def test_a_version_that_fails_keeps_the_old(stage: Stage) -> None:
    first = digest(stage)
    with fault(stage, "bad-update", "a version that cannot be loaded, and its old manifest") as watch:
        watch.changed.add(KEY)
        watch.broken()
        stage.fleet.apply(manifest("broken/truncated"))
        try:
            wait_until(lambda: stalled(stage.fleet, NAME), seconds=60, what="the failure is told")
            assert holds(stage.fleet.get("loraadapter", NAME), "Available")
            assert digest(stage) == first
            watch.wait_for_answers(1)
        finally:
            stage.fleet.apply(manifest())
        wait_until(lambda: holds(stage.fleet.get("loraadapter", NAME), "Ready"), seconds=120, what="Ready again")
    assert digest(stage) == first
    assert loaded(stage) == {first}


def test_the_same_digest_again_does_nothing(stage: Stage) -> None:
    """The declared digest is what is served already: a new generation, but no engine loads or unloads anything."""
    before = {name: (state.boot_id, versions(state.versions)) for name, state in engine_states(stage.fleet).items()}
    found = stage.fleet.get("loraadapter", NAME)
    assert found
    stage.fleet.apply(manifest())
    assert (stage.fleet.get("loraadapter", NAME) or {})["metadata"]["generation"] == found["metadata"]["generation"]
    stage.fleet.apply(manifest(digest=digest(stage)))
    try:
        wait_until(lambda: holds(stage.fleet.get("loraadapter", NAME), "Ready"), seconds=30, what="Ready as it was")
        after = {name: (state.boot_id, versions(state.versions)) for name, state in engine_states(stage.fleet).items()}
        assert after == before
        assert set(after) == {f"{POOL}-shared-0", f"{POOL}-shared-1"}
    finally:
        stage.fleet.apply(manifest())


def versions(states: object) -> set[tuple[str, str]]:
    """Keys and phases of what an engine holds."""
    assert isinstance(states, list)
    return {(each.key, each.phase.value) for each in states}
