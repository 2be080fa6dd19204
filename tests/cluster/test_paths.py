"""Whose cluster KUBECONFIG names."""

from pathlib import Path

import pytest

from e2e.cluster.paths import Cache, find_cache, foreign_kubeconfig


def test_the_local_clusters_own_kubeconfig_is_not_foreign(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert foreign_kubeconfig(cache) is None
    monkeypatch.setenv("KUBECONFIG", str(cache.kubeconfig))
    assert foreign_kubeconfig(cache) is None
    monkeypatch.setenv("KUBECONFIG", "/home/me/.kube/config")
    assert foreign_kubeconfig(cache) == "/home/me/.kube/config"


def test_the_cache_may_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LORAFLEET_CACHE", str(tmp_path))
    assert find_cache().kubeconfig == tmp_path / "cluster" / "admin.kubeconfig"
