"""Which namespace a command means when none is given: as kubectl."""

import json
from pathlib import Path

import pytest

from lorafleet_kube.access import default_namespace
from lorafleet_kube.errors import AccessError


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    contexts = [
        {"name": "with", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        {"name": "without", "context": {"cluster": "c", "user": "u"}},
    ]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": contexts,
        "current-context": "with",
    }
    path.write_text(json.dumps(config))
    return path


def test_of_the_current_or_the_named_context(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_namespace(str(kubeconfig)) == "team"
    assert default_namespace(str(kubeconfig), "without") == "default"
    assert default_namespace(str(kubeconfig), "absent") == "default"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert default_namespace() == "team"


def test_no_kubeconfig_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="no usable kubeconfig"):
        default_namespace(str(tmp_path / "absent"))
