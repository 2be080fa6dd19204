"""Keys and certificates: makes an authority, reads one, and issues what follows from it. Called by authority.py.

Never logs a key. Decides nothing: what a certificate is for and how long it lives comes from core/authority.py.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lorafleet_operator.core.authority import EARLY_SECONDS, ROOT_SECONDS, Root, Term
from lorafleet_operator.core.snapshot import Certificate

CURVE = ec.SECP256R1()
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256: a private key is a number from 1 to below it."""
SEED_BYTES = 48
"""Half as much again as a key has, so that none is likelier than another."""
SERIAL_BYTES = 16
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey


@dataclass(frozen=True, slots=True)
class Authority:
    """A key that signs, with its certificate."""

    root: Root
    certificate: x509.Certificate = field(repr=False)
    key: Key = field(repr=False)


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom a certificate is for: what sets it apart from all others, and the names and addresses that it serves."""

    identity: str
    names: Sequence[str]
    addresses: Sequence[str] = ()


def make_authority(now: float) -> tuple[str, str]:
    """The certificate and key, in PEM, of a new authority."""
    key = ec.generate_private_key(CURVE)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lorafleet engines")])
    mark = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = _builder(key.public_key(), mark, name, (now - EARLY_SECONDS, now + ROOT_SECONDS))
    certificate = (
        builder.subject_name(name)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, SHA256())
    )
    return _pem(certificate), _key_pem(key)


def read_authority(certificate: bytes, key: bytes) -> Authority:
    """An authority out of a Secret. Raises ValueError, with what to do, where it can't sign certificates."""
    try:
        found = x509.load_pem_x509_certificates(certificate)[0]
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"tls.crt and tls.key are no certificate and key in PEM: {error}") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError("the key is neither ECDSA nor RSA: make the authority with one of these")
    if private.public_key() != found.public_key():
        raise ValueError("tls.key is not the key of tls.crt")
    try:
        constraints = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        constraints = None
    if constraints is None or not constraints.ca:
        raise ValueError("the certificate may not sign others: make it with isCA: true")
    return Authority(_root(found), found, private)


def read_roots(bundle: str) -> tuple[Root, ...]:
    """The certificates of a bundle in PEM. Raises ValueError for a bundle that is none; an empty one has none."""
    if not bundle.strip():
        return ()
    return tuple(_root(each) for each in x509.load_pem_x509_certificates(bundle.encode()))


def issue(authority: Authority, holder: Holder, term: Term) -> Certificate:
    """The certificate of a holder for a term: the same for the same authority, holder and term."""
    addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in holder.addresses]
    names = x509.SubjectAlternativeName([*map(x509.DNSName, holder.names), *addresses])
    seed = _derive(authority, f"{holder.identity}/{term.number}", SEED_BYTES)
    key = ec.derive_private_key(int.from_bytes(seed, "big") % (ORDER - 1) + 1, CURVE)
    marks = "/".join(map(str, (holder.identity, *holder.names, *holder.addresses, *_terms(term))))
    serial = int.from_bytes(_derive(authority, f"serial/{marks}", SERIAL_BYTES), "big") >> 1
    issuer = authority.certificate
    builder = _builder(key.public_key(), _mark(authority), issuer.subject, (term.starts, term.expires))
    certificate = (
        builder.subject_name(x509.Name([]))
        .serial_number(serial + 1)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=True)  # the subject is empty
        .sign(authority.key, SHA256(), ecdsa_deterministic=_deterministic(authority.key))
    )
    return Certificate(certificate.fingerprint(SHA256()).hex(), _pem(certificate), _key_pem(key))


def _builder(
    subject: PublicKey, issuer: x509.SubjectKeyIdentifier, name: x509.Name, valid: tuple[float, float]
) -> x509.CertificateBuilder:
    starts, expires = (datetime.fromtimestamp(int(each), UTC) for each in valid)
    return (
        x509.CertificateBuilder()
        .issuer_name(name)
        .public_key(subject)
        .not_valid_before(starts)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(subject), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
    )


def _mark(authority: Authority) -> x509.SubjectKeyIdentifier:
    """What its certificate calls its key: by SHA-1 or otherwise (cert-manager's is not), and clients compare."""
    try:
        return authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.SubjectKeyIdentifier.from_public_key(authority.key.public_key())


def _terms(term: Term) -> tuple[int, int]:
    return int(term.starts), int(term.expires)


def _deterministic(key: Key) -> bool | None:
    """RSA signs so anyway."""
    return True if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _derive(authority: Authority, purpose: str, size: int) -> bytes:
    secret = authority.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return HKDF(SHA256(), size, salt=None, info=f"lorafleet.io/{purpose}".encode()).derive(secret)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _root(certificate: x509.Certificate) -> Root:
    return Root(
        certificate.fingerprint(SHA256()).hex(),
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
        _pem(certificate),
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
