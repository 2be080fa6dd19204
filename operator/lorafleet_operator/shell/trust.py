"""Whom the operator believes to be an engine. Filled by authority.py, used by everything that connects to engines.

An engine pod with the label of TLS is spoken to by TLS only, and must prove that it belongs to its pool; one without it
(of an earlier release) by plain HTTP.
"""

import asyncio
import ssl
from typing import TypedDict


class TlsOptions(TypedDict, total=False):
    """What a request of aiohttp is made with."""

    ssl: ssl.SSLContext
    server_hostname: str


class Trust:
    """The roots of engines' certificates. Until `known` no engine with TLS is believed."""

    def __init__(self, roots: str = "") -> None:
        self.known = asyncio.Event()
        self._roots = ""
        self._context = verifying(roots)
        if roots:
            self.take(roots)

    def take(self, roots: str) -> None:
        """Trust these (PEM, one after the other) from now on, for new connections."""
        if roots != self._roots:
            self._roots, self._context = roots, verifying(roots)
        self.known.set()

    def options(self, server_name: str) -> TlsOptions:
        """For requests to an engine of that name; to one that speaks plain HTTP for an empty one."""
        return {"ssl": self._context, "server_hostname": server_name} if server_name else {}


def verifying(roots: str) -> ssl.SSLContext:
    """TLS 1.2 or later with whoever has a certificate of one of these roots (PEM; none: of nobody) for his name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if roots:
        context.load_verify_locations(cadata=roots)
    return context
