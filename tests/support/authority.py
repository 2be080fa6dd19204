"""A certificate authority for tests of TLS: certificates for 127.0.0.1, or for a name."""

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Authority:
    """`bundle` is its certificate in PEM; `certificate` and `key` are files of a server at 127.0.0.1."""

    bundle: str
    certificate: Path
    key: Path
    root_key: ec.EllipticCurvePrivateKey

    def server_context(self) -> ssl.SSLContext:
        """What a server at 127.0.0.1 speaks TLS with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def write_pair(self, folder: Path, name: str) -> None:
        """A new key and certificate for one DNS name, as a mounted Secret holds them."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate("test server", key, "test authority", self.root_key, x509.DNSName(name))
        folder.mkdir(exist_ok=True)
        (folder / "tls.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
        (folder / "tls.key").write_bytes(_text(key))


def make_authority(folder: Path) -> Authority:
    """A new authority and its one server, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    root_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _certificate("test authority", root_key, "test authority", root_key, None)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    server = _certificate("test server", server_key, "test authority", root_key, address)
    certificate, key = folder / "server.pem", folder / "server.key"
    certificate.write_bytes(server.public_bytes(Encoding.PEM))
    key.write_bytes(_text(server_key))
    return Authority(root.public_bytes(Encoding.PEM).decode(), certificate, key, root_key)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    server: x509.GeneralName | None,
) -> x509.Certificate:
    """Of a server at that address or name; None: of an authority."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=server is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if server is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([server]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
