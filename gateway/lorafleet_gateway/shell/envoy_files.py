"""Writes Envoy's bootstrap, clusters and endpoints, by renaming: Envoy watches the folder and reloads them at once."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from lorafleet_gateway.core.envoy_bootstrap import build_bootstrap
from lorafleet_gateway.core.envoy_clusters import build_clusters, build_endpoints, build_roots, endpoints_file
from lorafleet_gateway.core.envoy_listeners import build_tls_secret
from lorafleet_gateway.core.envoy_names import CDS_FILE, ROOTS_FILE, TLS_FILE, EnvoyOptions, TlsOptions
from lorafleet_gateway.core.records import ObjectKey, Replica
from lorafleet_gateway.settings import Settings

BOOTSTRAP_FILE = "bootstrap.json"
PICKER_SECONDS = 5
"""What the picker has for an answer beside the time that a request may wait for a cold adapter."""
Hosts = Mapping[ObjectKey, tuple[Replica, ...]]


def write_bootstrap(settings: Settings) -> Path:
    """Write what Envoy needs to start; clusters and roots that exist are kept. Returns the bootstrap's path."""
    folder = settings.config_dir
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CDS_FILE).exists():
        _replace(folder / CDS_FILE, build_clusters((), str(folder)))
    if not (folder / ROOTS_FILE).exists():
        _replace(folder / ROOTS_FILE, build_roots(None))
    options = _envoy_options(settings)
    if options.tls is not None:
        _replace(folder / TLS_FILE, build_tls_secret(options.tls))
    bootstrap = build_bootstrap(options)
    _replace(folder / BOOTSTRAP_FILE, bootstrap)
    return folder / BOOTSTRAP_FILE


def _envoy_options(settings: Settings) -> EnvoyOptions:
    tls = None if settings.tls_dir is None else TlsOptions(settings.tls_port, str(settings.tls_dir))
    return EnvoyOptions(
        name=settings.name,
        listen_host=settings.listen_host,
        listen_port=settings.listen_port,
        admin_port=settings.envoy_admin_port,
        picker_port=settings.picker_port,
        log_port=settings.log_port,
        picker_seconds=settings.cold_seconds + PICKER_SECONDS,
        max_body=settings.max_body,
        request_seconds=settings.request_seconds,
        max_connections=settings.max_connections,
        config_dir=str(settings.config_dir),
        memory=settings.envoy_memory,
        tls=tls,
    )


class EnvoyFiles:
    """Keeps the files of clusters and endpoints equal to the table; writes only what changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[ObjectKey, tuple[Replica, ...]] | None = None

    def write(self, hosts: Hosts) -> None:
        """Bring the files in line with `hosts`. Endpoints come before the cluster that names their file."""
        known = self._written or {}
        for key, replicas in hosts.items():
            if known.get(key) != replicas:
                _replace(self._folder / endpoints_file(key), build_endpoints(key, replicas))
        if self._written is None or known.keys() != hosts.keys():
            _replace(self._folder / CDS_FILE, build_clusters(hosts, str(self._folder)))
            self._remove_stale(hosts)
        self._written = dict(hosts)

    def write_roots(self, pem: str) -> None:
        """Trust these roots in handshakes with engines from now on; connections that exist stay."""
        _replace(self._folder / ROOTS_FILE, build_roots(pem))

    def _remove_stale(self, hosts: Hosts) -> None:
        wanted = {endpoints_file(key) for key in hosts}
        for path in self._folder.glob("eds-*.json"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)


def _replace(path: Path, document: Mapping[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    partial.chmod(0o644)
    os.replace(partial, path)
