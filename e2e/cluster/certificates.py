"""The cluster's certificates, made with openssl; used when an API server or a node is set up.

Private keys never leave the state folder, except inside the kubeconfigs there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import run

_DAYS = 365
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"]


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in one folder, and everything it signs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def certificate(self) -> Path:
        """The authority's own certificate, which clients trust."""
        return self.pair("ca").certificate

    def pair(self, name: str) -> KeyPair:
        """Where the key pair called `name` lies, issued or not."""
        return KeyPair(self._folder / f"{name}.crt", self._folder / f"{name}.key")

    def create(self) -> None:
        """Make a new authority; whatever an older one signed is worthless afterwards."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        extensions = ["basicConstraints = critical, CA:TRUE", "keyUsage = critical, keyCertSign, cRLSign"]
        self._request("ca", "/CN=lorafleet-cluster-ca", extensions, [])

    def issue(self, name: str, subject: str, alternatives: Sequence[str] = ()) -> KeyPair:
        """Sign a pair for servers and clients.

        `subject` is openssl's form (`/O=group/CN=user`), `alternatives` are `DNS:name` or `IP:address`.
        """
        extensions = [
            "basicConstraints = critical, CA:FALSE",
            "keyUsage = critical, digitalSignature",
            "extendedKeyUsage = serverAuth, clientAuth",
            "authorityKeyIdentifier = keyid",
        ]
        if alternatives:
            extensions.append(f"subjectAltName = {', '.join(alternatives)}")
        authority = self.pair("ca")
        self._request(name, subject, extensions, ["-CA", str(authority.certificate), "-CAkey", str(authority.key)])
        return self.pair(name)

    def issue_token_key(self, name: str) -> KeyPair:
        """A bare key pair for signing service account tokens; the `certificate` is its public key."""
        pair = self.pair(name)
        run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", pair.key])
        run(["openssl", "pkey", "-in", pair.key, "-pubout", "-out", pair.certificate])
        return pair

    def _request(self, name: str, subject: str, extensions: Sequence[str], signer: Sequence[str]) -> None:
        # A configuration of our own: the system's adds "CA:TRUE" to whatever `req -x509` makes.
        settings = self._folder / f"{name}.cnf"
        lines = ["[req]", "distinguished_name = dn", "[dn]", "[ext]", "subjectKeyIdentifier = hash", *extensions]
        settings.write_text("\n".join(lines) + "\n")
        pair = self.pair(name)
        shape = ["-subj", subject, "-days", str(_DAYS), "-config", str(settings), "-extensions", "ext"]
        run(
            ["openssl", "req", "-x509", *_KEY, *signer, *shape, "-keyout", str(pair.key), "-out", str(pair.certificate)]
        )
