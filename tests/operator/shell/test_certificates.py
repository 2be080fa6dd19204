"""Certificates that Python's own TLS accepts, for the right name only, and that follow from their authority."""

import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from lorafleet_operator.core.authority import Term, term_of
from lorafleet_operator.core.snapshot import Certificate
from lorafleet_operator.shell.certificates import (
    Authority,
    Holder,
    issue,
    make_authority,
    read_authority,
    read_roots,
)
from lorafleet_operator.shell.trust import Trust
from tests.support.handshake import shake_hands

NOW = time.time()
POOL = Holder("pool/u", ("smol.team.engines.lorafleet",))


def new_authority() -> Authority:
    chain, key = make_authority(NOW)
    return read_authority(chain.encode(), key.encode())


def issued(authority: Authority, holder: Holder = POOL) -> Certificate:
    return issue(authority, holder, term_of(authority.root, holder.identity, NOW))


def test_who_connects_accepts_the_right_name_of_the_right_authority_only(tmp_path: Path) -> None:
    authority, other = new_authority(), new_authority()
    trust = Trust(authority.root.pem)
    assert shake_hands(issued(authority), trust.options(POOL.names[0]), tmp_path) == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(issued(authority), trust.options("smol.other.engines.lorafleet"), tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shake_hands(issued(other), trust.options(POOL.names[0]), tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shake_hands(issued(authority), Trust().options(POOL.names[0]), tmp_path)


def test_while_an_authority_changes_both_are_accepted(tmp_path: Path) -> None:
    """Their names are the same: the key's mark tells them apart."""
    old, new = new_authority(), new_authority()
    both = Trust(new.root.pem + old.root.pem)
    for each in (old, new):
        assert shake_hands(issued(each), both.options(POOL.names[0]), tmp_path) == "TLSv1.3"
    assert {each.fingerprint for each in read_roots(new.root.pem + old.root.pem)} == {
        old.root.fingerprint,
        new.root.fingerprint,
    }


def test_an_authority_may_call_its_key_as_it_likes(tmp_path: Path) -> None:
    """Go does so by SHA-256, and so cert-manager does."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "theirs")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(datetime.fromtimestamp(NOW - 1, UTC))
        .not_valid_after(datetime.fromtimestamp(NOW + 1000, UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier(b"any name of it"), critical=False)
        .sign(key, SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    authority = read_authority(certificate.public_bytes(Encoding.PEM), pem)
    assert shake_hands(issued(authority), Trust(authority.root.pem).options(POOL.names[0]), tmp_path) == "TLSv1.3"


def test_a_gateway_is_known_by_its_names_and_addresses(tmp_path: Path) -> None:
    authority = new_authority()
    gateway = issued(authority, Holder("gateway/system", ("llm.example.org",), ("10.0.0.1", "::1")))
    for name in ("llm.example.org", "10.0.0.1", "::1"):
        assert shake_hands(gateway, Trust(authority.root.pem).options(name), tmp_path) == "TLSv1.3"


def test_the_same_is_issued_again_and_anything_else_differs() -> None:
    authority, term = new_authority(), Term(1, NOW - 10, NOW + 100)
    first = issue(authority, POOL, term)
    assert issue(authority, POOL, term) == first
    others = [
        issue(authority, Holder("pool/v", POOL.names), term),
        issue(authority, POOL, Term(2, NOW - 10, NOW + 100)),
        issue(new_authority(), POOL, term),
    ]
    assert len({each.key for each in (first, *others)}) == 4, "each has a key of its own"
    renamed = issue(authority, Holder(POOL.identity, ("a", "b")), term)
    assert renamed.fingerprint != first.fingerprint
    assert first.key not in repr(first)
    assert "key" not in repr(authority)


def test_an_authority_with_an_rsa_key_issues_the_same_again() -> None:
    """As cert-manager makes them unless told otherwise."""
    key = rsa.generate_private_key(65537, 2048)
    authority = new_authority()
    by_rsa = Authority(authority.root, authority.certificate, key)
    assert issued(by_rsa) == issued(by_rsa)


def test_an_authority_that_cannot_sign_is_refused_with_the_reason() -> None:
    chain, key = (each.encode() for each in make_authority(NOW))
    leaf = issued(read_authority(chain, key))
    edwards = ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for wrong, words in (
        ((b"nonsense", key), "no certificate and key in PEM"),
        ((chain, b""), "no certificate and key in PEM"),
        ((chain, make_authority(NOW)[1].encode()), r"tls.key is not the key of tls.crt"),
        ((leaf.chain.encode(), leaf.key.encode()), "isCA: true"),
        ((chain, edwards), "neither ECDSA nor RSA"),
    ):
        with pytest.raises(ValueError, match=words):
            read_authority(*wrong)


def test_roots_are_read_or_refused() -> None:
    assert read_roots(" \n") == ()
    with pytest.raises(ValueError, match="PEM"):
        read_roots("nonsense")
