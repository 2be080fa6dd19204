"""Writes Envoy's bootstrap, clusters and endpoints, by renaming: Envoy watches the folder and reloads them at once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from lorafleet_gateway.core.envoy_bootstrap import CDS_FILE, build_bootstrap
from lorafleet_gateway.core.envoy_clusters import build_clusters, build_endpoints, endpoints_file
from lorafleet_gateway.core.records import Replica
from lorafleet_gateway.core.table import SetKey
from lorafleet_gateway.settings import Settings

BOOTSTRAP_FILE = "bootstrap.json"
Sets = Mapping[SetKey, tuple[Replica, ...]]


def write_bootstrap(settings: Settings) -> Path:
    """Write what Envoy needs to start; an existing set of clusters is kept. Returns the bootstrap's path."""
    folder = settings.config_dir
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CDS_FILE).exists():
        _replace(folder / CDS_FILE, build_clusters({}, str(folder)))
    bootstrap = build_bootstrap(
        name=settings.name,
        listen=(settings.listen_host, settings.listen_port),
        admin_port=settings.envoy_admin_port,
        picker_port=settings.picker_port,
        max_body=settings.max_body,
        config_dir=str(folder),
    )
    _replace(folder / BOOTSTRAP_FILE, bootstrap)
    return folder / BOOTSTRAP_FILE


class EnvoyFiles:
    """Keeps the files of clusters and endpoints equal to the table; writes only what changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[SetKey, tuple[Replica, ...]] | None = None

    def write(self, sets: Sets) -> None:
        """Bring the files in line with `sets`. Endpoints come before the cluster that names their file."""
        known = self._written or {}
        for key, replicas in sets.items():
            if known.get(key) != replicas:
                _replace(self._folder / endpoints_file(key), build_endpoints(key, replicas))
        if self._written is None or known.keys() != sets.keys():
            _replace(self._folder / CDS_FILE, build_clusters(sets, str(self._folder)))
            self._remove_stale(sets)
        self._written = dict(sets)

    def _remove_stale(self, sets: Sets) -> None:
        wanted = {endpoints_file(key) for key in sets}
        for path in self._folder.glob("eds-*.json"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)


def _replace(path: Path, document: Mapping[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    partial.chmod(0o644)
    os.replace(partial, path)
