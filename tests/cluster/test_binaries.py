"""The cache's layout, and that no program is built twice."""

from pathlib import Path

import pytest

from e2e.cluster.binaries import PROGRAMS, build_missing, locate
from e2e.cluster.errors import ToolMissing
from e2e.cluster.paths import Cache


def test_every_program_has_a_place_of_its_own() -> None:
    cache = Cache(Path("/cache"))
    places = {locate(cache, name) for name in PROGRAMS}
    assert len(places) == len(PROGRAMS)
    assert all(place.is_relative_to("/cache/bin") for place in places)


def test_what_is_cached_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    cache = Cache(tmp_path)
    with pytest.raises(ToolMissing, match="go is not installed"):
        build_missing(cache, ["etcd"])
    place = locate(cache, "etcd")
    place.parent.mkdir(parents=True)
    place.write_bytes(b"")
    build_missing(cache, ["etcd"])
