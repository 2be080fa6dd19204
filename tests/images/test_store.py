"""What a build is told about the machine."""

import pytest

from e2e.images.store import pip_settings, tls_flags


def test_pip_trusts_the_machines_certificates() -> None:
    assert pip_settings({}) == "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n"


def test_pip_uses_the_machines_index() -> None:
    assert "index-url = https://index.example/simple\n" in pip_settings(
        {"PIP_INDEX_URL": "https://index.example/simple"}
    )


@pytest.mark.parametrize(
    ("destination", "flags"),
    [
        ("127.0.0.1:5000/lorafleet/engine:dev", ["--tls-verify=false"]),
        ("localhost/lorafleet/engine:dev", ["--tls-verify=false"]),
        ("localhost:5001/lorafleet/engine:dev", ["--tls-verify=false"]),
        ("[::1]:5000/lorafleet/engine:dev", ["--tls-verify=false"]),
        ("registry.example/lorafleet/engine:dev", []),
        ("registry.example:5000/127.0.0.1/engine:dev", []),
    ],
)
def test_only_a_registry_on_this_machine_may_do_without_tls(destination: str, flags: list[str]) -> None:
    assert tls_flags(destination) == flags
