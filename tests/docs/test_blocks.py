"""Shell blocks of the docs that need no cluster, run as a reader would."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from e2e.cluster.machine import install_packages
from lorafleet_contracts.digest import adapter_files, folder_digest
from tests.support.authority import make_authority
from tests.support.shell_blocks import Block, Check, Shell, Stage, make_shell, pages_of, run_page
from tests.support.source_servers import docker_config, run_registry
from tests.support.team_manifests import write_teams

TEAMS = 40
"""As many as docs/planner.md plans for."""
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@contextmanager
def planner(shell: Shell) -> Iterator[Check]:
    """Manifests of the pool and the teams, and a trace of two minutes.

    The first line is the source document's example: 40 tenants, 30 requests/s, 10 less 20 % a GPU. That is
    ceil(30 / 8) + 1 (docs/capacity.md) against 40; the hottest tenant, at 70 % of a GPU, gets one of these five for
    itself in the first half hour.
    """
    manifests = shell.folder / "manifests"
    manifests.mkdir()
    write_teams(manifests, TEAMS)
    rows = (f"2026-11-30 10:{second // 60:02d}:{second % 60:02d}.0,200,100\n" for second in range(120))
    (shell.folder / "requests.csv").write_text(TRACE + "".join(rows))

    def check(block: Block, said: str) -> None:
        told, _ = json.JSONDecoder().raw_decode(said)
        assert f'{{"gpus": {told["gpus"]}, "gpus_dedicated": {told["gpus_dedicated"]}, ...}}' in block.text
        assert (told["gpus"], told["gpus_dedicated"], told["sets"]["shared"]) == (5, TEAMS, 4)
        last = told["promotions"][-1]
        assert (last["tenant"], last["stage"]) == ("team-00/acme", "Dedicated")
        assert told["cold_load_share"] == told["unserved_share"] == 0.0
        assert told["wait_seconds"]["p99"] < 5.0
        assert "<svg" in (shell.folder / "plan.html").read_text()

    yield check


@contextmanager
def sources(shell: Shell) -> Iterator[Check]:
    """An adapter's folder, and a registry in which its pusher is logged in."""
    install_packages(("docker-registry",))
    adapter, tls = shell.folder / "support", shell.folder / "tls"
    for folder in (adapter, tls, shell.folder / "registry", shell.folder / ".docker"):
        folder.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(bytes(1000))
    authority = make_authority(tls)
    (shell.folder / "ca.pem").write_text(authority.bundle)
    with run_registry(shell.folder / "registry", authority) as host:
        (shell.folder / ".docker" / "config.json").write_text(docker_config(host))
        shell.means["registry.corp.example"] = host
        shell.means["--pool qwen"] = "--pool qwen --ca-bundle ca.pem"

        def check(block: Block, said: str) -> None:
            assert "-----BEGIN PUBLIC KEY-----" in said
            made = yaml.safe_load(said[said.index("apiVersion:") :])
            assert made["spec"]["source"]["digest"] == folder_digest(adapter, adapter_files(adapter))
            assert made["spec"]["poolRef"]["name"] == "qwen"

        yield check


STAGES: dict[str, Stage] = {"docs/planner.md": planner, "docs/sources.md": sources}


@pytest.mark.heavy
@pytest.mark.timeout(600)  # plans of an hour, which a busy machine takes minutes for
@pytest.mark.parametrize("page", pages_of("unit"))
def test_every_block_does_what_its_page_says(page: str, tmp_path: Path) -> None:
    run_page(page, "unit", make_shell(tmp_path), STAGES[page])
