"""A TLS handshake in memory, with a certificate that was issued. Called by tests only."""

import ssl
from pathlib import Path

from lorafleet_operator.core.snapshot import Certificate
from lorafleet_operator.shell.trust import TlsOptions


def server_context(chain: str, key: str, folder: Path) -> ssl.SSLContext:
    """What a server with this certificate and key speaks TLS with; the files may go afterwards."""
    (folder / "tls.crt").write_text(chain)
    (folder / "tls.key").write_text(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


def shake_hands(served: Certificate, options: TlsOptions, folder: Path) -> str | None:
    """The version that both agree on. Raises SSLCertVerificationError where the client does not believe the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = server_context(served.chain, served.key, folder)
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = options["ssl"].wrap_bio(to_client, to_server, server_hostname=options["server_hostname"])
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.version()
