"""Folding the state port's answers."""

from typing import Any

import pytest

from lorafleet_contracts.admin import BaseState, EngineState, Tier, VersionPhase, VersionState
from lorafleet_gateway.core.residency import fold

ONE, TWO = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def state(*versions: VersionState, **fields: Any) -> EngineState:
    defaults = {"boot_id": "b", "seq": 1, "full": True, "ready": True, "draining": False, "base": BaseState(name="x")}
    return EngineState(**{**defaults, "versions": list(versions), **fields})


def version(digest: str, phase: VersionPhase = VersionPhase.RESIDENT, tier: Tier = Tier.GPU) -> VersionState:
    return VersionState(uid="u", digest=digest, tier=tier, phase=phase)


def test_a_full_answer_replaces_and_a_delta_changes() -> None:
    view = fold(None, state(version(ONE), in_flight=2, queue=3))
    assert view.versions == {f"u@{ONE}": Tier.GPU}
    assert view.load == 5
    view = fold(view, state(version(TWO, tier=Tier.HOST), full=False, seq=2))
    assert view.versions == {f"u@{ONE}": Tier.GPU, f"u@{TWO}": Tier.HOST}
    view = fold(view, state(full=False, seq=3, removed=[f"u@{ONE}", "never@seen"]))
    assert view.versions == {f"u@{TWO}": Tier.HOST}
    view = fold(view, state(version(ONE), boot_id="c"))
    assert (view.boot_id, dict(view.versions)) == ("c", {f"u@{ONE}": Tier.GPU})


@pytest.mark.parametrize("phase", [each for each in VersionPhase if each is not VersionPhase.RESIDENT])
def test_only_resident_versions_serve(phase: VersionPhase) -> None:
    assert fold(None, state(version(ONE, phase))).versions == {}
    assert fold(fold(None, state(version(ONE))), state(version(ONE, phase), full=False)).versions == {}


def test_readiness_and_draining_are_kept() -> None:
    view = fold(None, state(ready=False, draining=True))
    assert (view.serves_base, view.draining) == (False, True)
