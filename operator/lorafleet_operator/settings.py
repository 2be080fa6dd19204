"""The operator's settings from the environment. Read once by main.py; everything else gets values."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from lorafleet_operator.core.snapshot import EngineDefaults
from lorafleet_operator.errors import SettingsError

PULL_POLICIES = ("Always", "IfNotPresent", "Never")


@dataclass(frozen=True, slots=True)
class Settings:
    """`watch_namespaces` empty = all; `deployment` None = the port keys' Secret has no owner."""

    namespace: str
    pod_name: str
    engine: EngineDefaults
    deployment: str | None = None
    watch_namespaces: tuple[str, ...] = ()
    lease_name: str = "lorafleet-operator"
    health_port: int = 8080
    log_level: str = "INFO"


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read LORAFLEET_* variables. Raises SettingsError."""
    pull_policy = environment.get("LORAFLEET_ENGINE_PULL_POLICY") or "IfNotPresent"
    if pull_policy not in PULL_POLICIES:
        raise SettingsError(f"LORAFLEET_ENGINE_PULL_POLICY must be one of {', '.join(PULL_POLICIES)}")
    namespaces = environment.get("LORAFLEET_WATCH_NAMESPACES", "")
    return Settings(
        namespace=_required(environment, "LORAFLEET_NAMESPACE"),
        pod_name=environment.get("LORAFLEET_POD_NAME") or socket.gethostname(),
        engine=EngineDefaults(_required(environment, "LORAFLEET_ENGINE_IMAGE"), pull_policy),
        deployment=environment.get("LORAFLEET_DEPLOYMENT") or None,
        watch_namespaces=tuple(sorted({each.strip() for each in namespaces.split(",") if each.strip()})),
        lease_name=environment.get("LORAFLEET_LEASE_NAME") or "lorafleet-operator",
        health_port=_port(environment.get("LORAFLEET_HEALTH_PORT") or "8080"),
        log_level=(environment.get("LORAFLEET_LOG_LEVEL") or "INFO").upper(),
    )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise SettingsError(f"{name} must be set")
    return value


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 65536:
        raise SettingsError(f"LORAFLEET_HEALTH_PORT is no port: {text!r}")
    return int(text)
