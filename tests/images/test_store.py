"""What a build is told about the machine."""

from e2e.images.store import pip_settings


def test_pip_trusts_the_machines_certificates() -> None:
    assert pip_settings({}) == "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n"


def test_pip_uses_the_machines_index() -> None:
    assert "index-url = https://index.example/simple\n" in pip_settings(
        {"PIP_INDEX_URL": "https://index.example/simple"}
    )
