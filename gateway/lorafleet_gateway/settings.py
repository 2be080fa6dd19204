"""The gateway's settings, read once from the environment by `__main__`. Nothing else reads environment variables."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Addresses, folders and limits of one gateway instance; sizes in bytes.

    A client has `request_seconds` to send a request, which may wait `cold_seconds` for its adapter. `tls_dir` None:
    clients connect without TLS. `envoy_memory` None: Envoy takes what it needs. `limits_store` is the URL of the store
    that all instances share, None for the only one; `limits_when_down` what applies while it is away.
    """

    name: str
    config_dir: Path
    keys_dir: Path
    listen_host: str
    listen_port: int
    picker_port: int
    log_port: int
    health_host: str
    health_port: int
    envoy_admin_port: int
    max_body: int
    request_seconds: int
    max_connections: int
    envoy_memory: int | None
    tls_dir: Path | None
    tls_port: int
    cold_seconds: int
    drain_seconds: int
    limits_store: str | None
    limits_when_down: str
    log_level: str


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read LORAFLEET_* variables. Raises ValueError for a number that is none, OSError for a file that is not there."""

    def text(name: str, default: str) -> str:
        return environment.get(f"LORAFLEET_{name}") or default

    def number(name: str, default: int) -> int:
        return int(text(name, str(default)))

    return Settings(
        name=text("GATEWAY_NAME", socket.gethostname()),
        config_dir=Path(text("CONFIG_DIR", "/run/lorafleet")),
        keys_dir=Path(text("KEYS_DIR", "/etc/lorafleet/port-keys")),
        listen_host=text("LISTEN_HOST", "0.0.0.0"),
        listen_port=number("LISTEN_PORT", 8080),
        picker_port=number("PICKER_PORT", 9002),
        log_port=number("LOG_PORT", 9004),
        health_host=text("HEALTH_HOST", "0.0.0.0"),
        health_port=number("HEALTH_PORT", 9003),
        envoy_admin_port=number("ENVOY_ADMIN_PORT", 19000),
        max_body=number("MAX_BODY_BYTES", 8 << 20),
        request_seconds=number("REQUEST_SECONDS", 60),
        max_connections=number("MAX_CONNECTIONS", 10_000),
        envoy_memory=number("ENVOY_MEMORY_BYTES", 0) or None,
        tls_dir=Path(text("TLS_DIR", "")) if text("TLS_DIR", "") else None,
        tls_port=number("TLS_PORT", 8443),
        cold_seconds=number("COLD_SECONDS", 5),
        drain_seconds=number("DRAIN_SECONDS", 600),
        limits_store=_read_file(text("LIMITS_STORE_FILE", "")),
        limits_when_down=text("LIMITS_WHEN_DOWN", "Open"),
        log_level=text("LOG_LEVEL", "INFO"),
    )


def _read_file(name: str) -> str | None:
    return Path(name).read_text().strip() if name else None
