"""The three commands of the gateway's pod, as its containers run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LORAFLEET_CONFIG_DIR": str(folder / "envoy"),
        **environment,
    }
    program = [sys.executable, "-m", "lorafleet_gateway", *command]
    return subprocess.run(program, env=variables, capture_output=True, text=True, check=False, timeout=60)


def test_bootstrap_writes_what_envoy_needs_and_names_it(tmp_path: Path) -> None:
    done = run(["bootstrap"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "envoy/bootstrap.json"
    assert sorted(each.name for each in (tmp_path / "envoy").iterdir()) == [
        "bootstrap.json",
        "cds.json",
        "engine-roots.json",
    ]


@pytest.mark.parametrize(
    ("command", "environment", "message"),
    [
        ([], {}, "no usable kubeconfig or service account"),
        (["drain"], {"LORAFLEET_ENVOY_ADMIN_PORT": "1"}, "Cannot connect"),
        (["bootstrap"], {"LORAFLEET_MAX_BODY_BYTES": "8Mi"}, "invalid literal"),
    ],
)
def test_what_cannot_work_ends_with_a_message(
    tmp_path: Path, command: list[str], environment: dict[str, str], message: str
) -> None:
    done = run(command, tmp_path, **environment)
    assert done.returncode == 1
    assert message in done.stderr
