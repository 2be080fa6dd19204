"""The operator's environment."""

import pytest

from lorafleet_operator.core.port_keys import Period
from lorafleet_operator.core.snapshot import Neighbours
from lorafleet_operator.errors import SettingsError
from lorafleet_operator.settings import read_settings
from lorafleet_operator.shell.authority import GatewayCertificate

LEAST = {"LORAFLEET_NAMESPACE": "system", "LORAFLEET_ENGINE_IMAGE": "registry.test/engine:1"}


def test_two_variables_suffice() -> None:
    settings = read_settings(LEAST)
    assert (settings.namespace, settings.engine.image, settings.engine.pull_policy) == (
        "system",
        "registry.test/engine:1",
        "IfNotPresent",
    )
    assert (settings.deployment, settings.watch_namespaces, settings.health_port) == (None, (), 8080)
    assert settings.pod_name
    assert settings.engine.neighbours is None
    assert settings.rotation.every is None


def test_everything_can_be_set() -> None:
    settings = read_settings(
        LEAST
        | {
            "LORAFLEET_POD_NAME": "operator-1",
            "LORAFLEET_DEPLOYMENT": "operator",
            "LORAFLEET_ENGINE_PULL_POLICY": "Never",
            "LORAFLEET_WATCH_NAMESPACES": "b, a,",
            "LORAFLEET_LEASE_NAME": "lease",
            "LORAFLEET_HEALTH_PORT": "9000",
            "LORAFLEET_LOG_LEVEL": "debug",
            "LORAFLEET_ROTATE_PORT_KEYS_EVERY": "720h",
            "LORAFLEET_PORT_KEYS_QUIET": "5m",
            "LORAFLEET_POLICY_INSTANCE": "main",
            "LORAFLEET_MONITORING_NAMESPACES": "ops, metrics",
        }
    )
    assert settings.engine.neighbours == Neighbours("system", "main", ("metrics", "ops"))
    assert (settings.pod_name, settings.deployment, settings.lease_name) == ("operator-1", "operator", "lease")
    assert (settings.engine.pull_policy, settings.watch_namespaces) == ("Never", ("a", "b"))
    assert (settings.health_port, settings.log_level) == (9000, "DEBUG")
    assert settings.rotation == Period(every=720 * 3600.0, quiet=300.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"LORAFLEET_NAMESPACE": ""},
        {"LORAFLEET_ENGINE_IMAGE": ""},
        {"LORAFLEET_ENGINE_PULL_POLICY": "Sometimes"},
        {"LORAFLEET_ROTATE_PORT_KEYS_EVERY": "monthly"},
        {"LORAFLEET_PORT_KEYS_QUIET": "2"},
        {"LORAFLEET_HEALTH_PORT": "http"},
        {"LORAFLEET_HEALTH_PORT": "70000"},
    ],
)
def test_nonsense_is_refused_by_name(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        read_settings(LEAST | wrong)


def test_who_makes_which_certificate_can_be_said() -> None:
    assert (read_settings(LEAST).makes_authority, read_settings(LEAST).gateway_certificate) == (True, None)
    told = {
        "LORAFLEET_ENGINE_CA_BY": "CertManager",
        "LORAFLEET_GATEWAY_TLS": '{"secret": "g", "dnsNames": ["llm.example.org"], "ipAddresses": ["10.0.0.1"]}',
    }
    settings = read_settings(LEAST | told)
    assert not settings.makes_authority
    assert settings.gateway_certificate == GatewayCertificate("g", ("llm.example.org",), ("10.0.0.1",))
    for name, wrong in (
        ("LORAFLEET_ENGINE_CA_BY", "Magic"),
        ("LORAFLEET_GATEWAY_TLS", "nonsense"),
        ("LORAFLEET_GATEWAY_TLS", "[]"),
        ("LORAFLEET_GATEWAY_TLS", '{"secret": "g", "dnsNames": ["münchen.example"]}'),
        ("LORAFLEET_GATEWAY_TLS", '{"secret": "g", "ipAddresses": ["gateway"]}'),
    ):
        with pytest.raises(SettingsError, match=name):
            read_settings(LEAST | {name: wrong})
