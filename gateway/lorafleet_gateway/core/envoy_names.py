"""Names that Envoy's documents and the picker's answers must agree on. Used by core/envoy_*.py and shell."""

from dataclasses import dataclass
from typing import Any

from lorafleet_contracts.names import HEADER_PREFIX

Document = dict[str, Any]

HEADER_CLUSTER = f"{HEADER_PREFIX}cluster"
"""Set by the picker for Envoy's route; never sent upstream."""
DESTINATION_NAMESPACE = "envoy.lb"
DESTINATION_KEY = "x-gateway-destination-endpoint"
COUNTED_KEY = "counted"
"""Beside the destination: the picker wants to know when the request ends."""
PICKER_DETAILS = "picker_"
"""Prefix of the response code details of the picker's own answers."""
READY_PATH = "/ready"
CDS_FILE = "cds.json"
TLS_FILE = "tls.json"
ROOTS_FILE = "engine-roots.json"
TYPE = "type.googleapis.com/envoy."
HTTP_FILTERS = f"{TYPE}extensions.filters.http."
BUFFER_BYTES = 1 << 18
"""What Envoy holds of an answer that its client does not take: slow readers hold up their engine, not memory."""
UNLIMITED = 100_000


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Where clients connect with TLS, and the folder with `tls.crt` and `tls.key`, as a mounted Secret has them."""

    port: int
    folder: str


@dataclass(frozen=True, slots=True)
class EnvoyOptions:
    """What a bootstrap is made of.

    `picker_seconds` is for the picker's answer, `request_seconds` for a request to arrive; `memory` is what Envoy may
    take in bytes, None for no limit.
    """

    name: str
    listen_host: str
    listen_port: int
    admin_port: int
    picker_port: int
    log_port: int
    picker_seconds: int
    max_body: int
    request_seconds: int
    max_connections: int
    config_dir: str
    memory: int | None = None
    tls: TlsOptions | None = None

    @property
    def headers_seconds(self) -> int:
        """For a request's headers to arrive."""
        return min(10, self.request_seconds)


def address(host: str, port: int) -> Document:
    """A TCP address."""
    return {"socket_address": {"address": host, "port_value": port}}
