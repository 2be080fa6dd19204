import subprocess
import sys
from pathlib import Path

import pytest

from lorafleet_contracts.cli import main


def test_digest_prints_the_digest_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_text("w")
    assert main(["digest", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("sha256:")
    assert len(printed.out.strip()) == 71
    assert printed.err == ""


def test_digest_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digest", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "adapter_config.json is missing" in printed.err


def test_digest_needs_pydantic_and_nothing_else() -> None:
    """`pip install lorafleet` alone gives a CLI that starts."""
    code = (
        "import sys, lorafleet_contracts.cli as cli\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'kopf', 'kubernetes', 'aiohttp', 'grpc')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_usage_errors_exit_with_two() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["nonsense"])
    assert caught.value.code == 2


def test_it_is_kubectl_s_plugin_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-lorafleet", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith("usage: kubectl lorafleet ")


def test_a_command_loads_no_other_command(tmp_path: Path) -> None:
    code = "import sys, lorafleet_contracts.cli as cli; cli.main(['digest', '.']); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path).returncode == 0
