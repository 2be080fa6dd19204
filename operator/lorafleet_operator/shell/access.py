"""Our way to the API server, as the fields that kopf's log-in wants. Called by main.py; sends nothing."""

from typing import Any

from lorafleet_kube.access import Access


async def connection_fields(access: Access) -> dict[str, Any]:
    """Fields of kopf.ConnectionInfo. The token is the present one; kopf asks again when it expires."""
    configuration = access.configuration
    scheme, _, token = (await access.headers()).get("authorization", "").partition(" ")
    fields = {
        "server": access.server,
        "ca_path": configuration.ssl_ca_cert,
        "insecure": not configuration.verify_ssl,
        "certificate_path": configuration.cert_file,
        "private_key_path": configuration.key_file,
        "scheme": scheme or None,
        "token": token or None,
    }
    return {name: value for name, value in fields.items() if value}
