"""A Prometheus on this machine that scrapes a fleet through forwarded ports; used by the e2e tests.

Its targets carry the labels that the chart's PodMonitors give them.
"""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import yaml

from e2e.cluster.controlplane import find_free_ports
from e2e.cluster.paths import find_cache
from e2e.engines import Trust
from e2e.prometheus.package import fetch_missing, locate


@dataclass(frozen=True, slots=True)
class Target:
    """One program's metrics; with `trust` by TLS."""

    address: str
    labels: dict[str, str]
    token: str = field(default="", repr=False)
    trust: Trust | None = None


def configure(folder: Path, targets: Sequence[Target]) -> Path:
    """Write Prometheus' own file, with one job a target, and what it refers to; returns its path."""
    jobs = [
        {
            "job_name": f"target-{number}",
            "static_configs": [{"targets": [urlsplit(each.address).netloc], "labels": each.labels}],
            **({"authorization": {"credentials": each.token}} if each.token else {}),
            **(_tls(folder / f"target-{number}.crt", each.trust) if each.trust else {}),
        }
        for number, each in enumerate(targets)
    ]
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump({"global": {"scrape_interval": "2s"}, "scrape_configs": jobs}))
    return file


def _tls(file: Path, trust: Trust) -> dict[str, object]:
    """Roots go into a file: not every Prometheus takes them in its own."""
    file.write_text(trust.roots)
    return {"scheme": "https", "tls_config": {"ca_file": str(file), "server_name": trust.name}}


@contextmanager
def running(folder: Path, targets: Sequence[Target]) -> Iterator[httpx.Client]:
    """A client of a Prometheus that scrapes these, while the block runs."""
    cache = find_cache()
    fetch_missing(cache)
    (port,) = find_free_ports(1)
    command = [
        locate(cache, "prometheus"),
        f"--config.file={configure(folder, targets)}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.console.templates=/nonexistent",
    ]
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    with client, (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _await_ready(client, process, folder / "prometheus.log")
            yield client
        finally:
            process.terminate()
            process.wait()


def ask(prometheus: httpx.Client, expression: str) -> list[dict[str, object]]:
    """What an expression gives now; not-a-number counts as nothing."""
    answer = prometheus.get("/api/v1/query", params={"query": expression})
    answer.raise_for_status()
    return [each for each in json.loads(answer.content)["data"]["result"] if each["value"][1] != "NaN"]


def _await_ready(client: httpx.Client, process: "subprocess.Popen[bytes]", log: Path, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            if client.get("/-/ready", timeout=2).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"Prometheus did not start: {log.read_text()[-2000:]}")
