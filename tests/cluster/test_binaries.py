"""The cache's layout, and that no program is built twice."""

from pathlib import Path

import pytest

from e2e.cluster.binaries import NEEDED, PROGRAMS, build_missing, locate
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


def test_a_call_that_builds_nothing_leaves_the_compilers_caches_to_whoever_builds(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for name in NEEDED:
        place = locate(cache, name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(b"")
    under_way = tmp_path / "go" / "build"
    under_way.mkdir(parents=True)
    build_missing(cache)
    assert under_way.exists()


def test_no_cluster_waits_for_what_is_built_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "metrics-server" in set(PROGRAMS) - set(NEEDED)
    with pytest.raises(ToolMissing, match="go is not installed"):
        build_missing(Cache(tmp_path), ["metrics-server"])
