"""The operator's settings from the environment. Read once by main.py; everything else gets values."""

import ipaddress
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from lorafleet_contracts.durations import parse_seconds
from lorafleet_operator.core.port_keys import ONLY_BY_COMMAND, Period
from lorafleet_operator.core.snapshot import EngineDefaults, Neighbours
from lorafleet_operator.errors import SettingsError
from lorafleet_operator.shell.authority import GatewayCertificate

PULL_POLICIES = ("Always", "IfNotPresent", "Never")


@dataclass(frozen=True, slots=True)
class Settings:
    """`watch_namespaces` empty = all; `deployment` None = what the operator makes in its own namespace has no owner;
    `makes_authority` False = somebody else makes the one of the engines' certificates."""

    namespace: str
    pod_name: str
    engine: EngineDefaults
    deployment: str | None = None
    watch_namespaces: tuple[str, ...] = ()
    lease_name: str = "lorafleet-operator"
    health_port: int = 8080
    log_level: str = "INFO"
    rotation: Period = ONLY_BY_COMMAND
    makes_authority: bool = True
    gateway_certificate: GatewayCertificate | None = None


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read LORAFLEET_* variables. Raises SettingsError."""
    pull_policy = environment.get("LORAFLEET_ENGINE_PULL_POLICY") or "IfNotPresent"
    if pull_policy not in PULL_POLICIES:
        raise SettingsError(f"LORAFLEET_ENGINE_PULL_POLICY must be one of {', '.join(PULL_POLICIES)}")
    namespace, instance = _required(environment, "LORAFLEET_NAMESPACE"), environment.get("LORAFLEET_POLICY_INSTANCE")
    monitoring = _names(environment, "LORAFLEET_MONITORING_NAMESPACES")
    neighbours = Neighbours(namespace, instance, monitoring) if instance else None
    return Settings(
        namespace=namespace,
        pod_name=environment.get("LORAFLEET_POD_NAME") or socket.gethostname(),
        engine=EngineDefaults(_required(environment, "LORAFLEET_ENGINE_IMAGE"), pull_policy, neighbours),
        deployment=environment.get("LORAFLEET_DEPLOYMENT") or None,
        watch_namespaces=_names(environment, "LORAFLEET_WATCH_NAMESPACES"),
        lease_name=environment.get("LORAFLEET_LEASE_NAME") or "lorafleet-operator",
        health_port=_port(environment.get("LORAFLEET_HEALTH_PORT") or "8080"),
        makes_authority=_makes_authority(environment.get("LORAFLEET_ENGINE_CA_BY") or "Operator"),
        gateway_certificate=_gateway(environment.get("LORAFLEET_GATEWAY_TLS") or ""),
        log_level=(environment.get("LORAFLEET_LOG_LEVEL") or "INFO").upper(),
        rotation=Period(
            every=_duration(environment, "LORAFLEET_ROTATE_PORT_KEYS_EVERY"),
            quiet=_duration(environment, "LORAFLEET_PORT_KEYS_QUIET") or ONLY_BY_COMMAND.quiet,
        ),
    )


def _names(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    """A comma list, sorted."""
    return tuple(sorted({each.strip() for each in environment.get(name, "").split(",") if each.strip()}))


def _makes_authority(by: str) -> bool:
    if by not in ("Operator", "CertManager"):
        raise SettingsError(f"LORAFLEET_ENGINE_CA_BY must be Operator or CertManager, not {by!r}")
    return by == "Operator"


def _gateway(text: str) -> GatewayCertificate | None:
    """{"secret": name, "dnsNames": [...], "ipAddresses": [...]}; nothing where the certificate is not ours to issue."""
    if not text:
        return None
    try:
        found = json.loads(text)
        names, addresses = (tuple(map(str, found.get(each) or [])) for each in ("dnsNames", "ipAddresses"))
        for each in addresses:
            ipaddress.ip_address(each)
        "".join(names).encode("ascii")
        return GatewayCertificate(str(found["secret"]), names, addresses)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"LORAFLEET_GATEWAY_TLS must be a JSON object with secret, dnsNames and ipAddresses: {error}"
        ) from error


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise SettingsError(f"{name} must be set")
    return value


def _duration(environment: Mapping[str, str], name: str) -> float | None:
    """Seconds; None where nothing is set."""
    text = environment.get(name)
    try:
        return parse_seconds(text) if text else None
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from error


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 65536:
        raise SettingsError(f"LORAFLEET_HEALTH_PORT is no port: {text!r}")
    return int(text)
