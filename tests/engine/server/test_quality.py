"""What the loop finds out about a version on a quantised base is news on the state port, judged by the contract."""

import pytest

from lorafleet_contracts.admin import Display, QualityState, SourceSpec, VersionRequest
from lorafleet_engine.loader.messages import LoaderConfig
from lorafleet_engine.messages import AdapterChecked, Quality
from lorafleet_engine.server.changes import ChangeLog
from lorafleet_engine.server.loader_client import LoaderClient
from lorafleet_engine.server.loop_client import LoopClient
from lorafleet_engine.server.metrics import Metrics
from lorafleet_engine.server.versions import Versions, Workers

DIGEST = "sha256:" + "a" * 64
CONFIG = LoaderConfig("/tmp", 1, "/tmp", 1, "/tmp", "bfloat16", ("base",), ())


@pytest.mark.parametrize(
    ("rel_l2", "same_argmax", "passed"),
    [(0.04, 0.97, True), (0.05, 0.95, True), (0.051, 1.0, False), (0.01, 0.94, False), (float("nan"), 1.0, False)],
)
async def test_quality_is_news(rel_l2: float, same_argmax: float, passed: bool) -> None:
    changes = ChangeLog()
    workers = Workers(LoaderClient(CONFIG), LoopClient(changes.bump, changes.bump, lambda checked: None))
    versions = Versions(workers, changes, Metrics())
    display = Display(namespace="team", name="a")
    version = versions.put("uid", DIGEST, VersionRequest(source=SourceSpec(uri="file:///a"), display=display))
    seen = changes.seq
    versions.note_quality(AdapterChecked("unknown@d", Quality(0.1, 1.0, 160)))
    assert versions.states_since(seen) == []
    versions.note_quality(AdapterChecked(version.key, Quality(rel_l2, same_argmax, 160)))
    (state,) = versions.states_since(seen)
    assert state.quality is not None
    assert state.quality.passed is passed
    assert QualityState.model_validate_json(state.quality.model_dump_json(by_alias=True)) == state.quality
