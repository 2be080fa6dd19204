"""Certificates that openssl itself and Python's TLS accept."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from e2e.cluster.certificates import Authority, KeyPair
from e2e.cluster.commands import run


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "pki")
    made.create()
    return made


def serve_once(listener: socket.socket, pair: KeyPair) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    try:
        connection, _ = listener.accept()
        context.wrap_socket(connection, server_side=True).close()
    except ssl.SSLError:
        return  # the client refused our name


def shake_hands(authority: Authority, pair: KeyPair, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve_once, args=(listener, pair))
        server.start()
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        try:
            with (
                socket.create_connection(listener.getsockname()) as plain,
                context.wrap_socket(plain, server_hostname=name),
            ):
                pass
        finally:
            server.join()


def test_a_server_certificate_holds_for_its_alternative_names(authority: Authority) -> None:
    pair = authority.issue("server", "/CN=server", ["DNS:localhost", "IP:127.0.0.1"])
    shake_hands(authority, pair, "127.0.0.1")
    shake_hands(authority, pair, "localhost")


def test_a_name_that_was_not_asked_for_is_refused(authority: Authority) -> None:
    pair = authority.issue("server", "/CN=server", ["DNS:localhost"])
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(authority, pair, "127.0.0.1")


def test_subject_carries_user_and_group(authority: Authority) -> None:
    pair = authority.issue("admin", "/O=system:masters/CN=admin")
    subject = run(["openssl", "x509", "-in", pair.certificate, "-noout", "-subject"])
    assert "system:masters" in subject
    assert "admin" in subject


def test_keys_are_private(authority: Authority) -> None:
    pair = authority.issue("admin", "/CN=admin")
    assert pair.key.stat().st_mode & 0o077 == 0
