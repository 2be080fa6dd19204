"""What the examples for Flux, Argo CD and a repository's CI say, and that the CI's command works."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

PROGRAM = """
import sys
from lorafleet_operator.cli.plan import register
from tests.support.commands import run_command
sys.exit(run_command(register, *sys.argv[1:]))
"""
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def documents(*parts: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(EXAMPLES.joinpath(*parts).read_text()))


def plan_step() -> str:
    (job,) = documents("ci", "plan.yaml")[0]["jobs"].values()
    (step,) = (each for each in job["steps"] if each.get("name") == "Plan")
    return str(step["run"])


@pytest.mark.parametrize(("gpus", "code"), [("8", 0), ("0", 1)])
def test_the_check_passes_and_fails_with_the_gpus_there_are(tmp_path: Path, gpus: str, code: int) -> None:
    program = tmp_path / "lorafleet"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)
    quickstart = (EXAMPLES / "quickstart" / f"{name}.yaml" for name in ("namespace", "pool", "adapters", "tenants"))
    (tmp_path / "rendered.yaml").write_text("---\n".join(path.read_text() for path in quickstart))
    # Short, and without the page, whose library takes seconds to load.
    command = plan_step().replace(" --report plan.html", " --hours 1/60")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "RPS": "2", "MAX_GPUS": gpus, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("more than --max-gpus 0" in done.stderr) == (code == 1)


def test_flux_upgrades_crds_and_waits() -> None:
    release = next(each for each in documents("flux", "lorafleet.yaml") if each["kind"] == "HelmRelease")
    assert release["spec"]["install"]["crds"] == release["spec"]["upgrade"]["crds"] == "CreateReplace"
    fleet = next(each for each in documents("flux", "fleet.yaml") if each["kind"] == "Kustomization")
    assert fleet["spec"]["wait"]
    assert (EXAMPLES / fleet["spec"]["path"] / "kustomization.yaml").is_file()


def test_argo_cd_applies_server_side() -> None:
    applications = documents("argocd", "applications.yaml")
    assert all("ServerSideApply=true" in each["spec"]["syncPolicy"]["syncOptions"] for each in applications)
    paths = [each["spec"]["source"]["path"] for each in applications]
    assert (EXAMPLES.parent / paths[0] / "Chart.yaml").is_file()
    assert (EXAMPLES / paths[1] / "kustomization.yaml").is_file()
