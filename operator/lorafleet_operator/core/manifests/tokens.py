"""The Secret with the tokens that a pool's engines accept, one port a key. Its content is never printed or diffed."""

import base64
from typing import Any

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.names import ENGINE_CA_KEY
from lorafleet_operator.core.manifests.identity import object_meta, tokens_name
from lorafleet_operator.core.snapshot import Meta, PoolTokens


def build_tokens(pool: Meta, tokens: PoolTokens, roots: str = "") -> dict[str, Any]:
    """One accepted token a line, the current one first, its predecessor after it while keys rotate.

    `scrape` is the state port's current token alone, for a Prometheus that takes a key of a Secret as it is,
    and `ca.crt` are the roots that prove engines: who may ask them needs no right on their keys.
    """
    data = {port: "".join(f"{each}\n" for each in accepted) for port, accepted in tokens.by_port.items()}
    data["scrape"] = tokens.by_port[PortName.STATE.value][0]
    if roots:
        data[ENGINE_CA_KEY] = roots
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": object_meta(pool, tokens_name(pool.name)),
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in sorted(data.items())},
    }
