"""promtool on the alerts: they fire when they should, with the words that they should, and are silent before."""

import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.paths import find_cache
from e2e.prometheus.package import locate
from tests.support.queries import CHART

pytestmark = pytest.mark.prometheus
RULES = CHART / "alerts" / "rules.yaml"
CASES = Path(__file__).with_name("alerts_test.yaml")


def promtool(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [locate(find_cache(), "promtool"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    done = promtool("check", "rules", RULES, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    for path in (RULES, CASES):
        shutil.copy(path, tmp_path)
    done = promtool("test", "rules", CASES.name, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_is_off_is_found(tmp_path: Path) -> None:
    shutil.copy(CASES, tmp_path)
    (tmp_path / RULES.name).write_text(RULES.read_text().replace("> 0.05", "> 0.5"))
    assert promtool("test", "rules", CASES.name, folder=tmp_path).returncode != 0
