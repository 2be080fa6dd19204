"""The Secret with the tokens that a pool's engines accept, one port a key. Its content is never printed or diffed."""

import base64
from typing import Any

from lorafleet_operator.core.manifests.identity import object_meta, tokens_name
from lorafleet_operator.core.snapshot import Meta, PoolTokens


def build_tokens(pool: Meta, tokens: PoolTokens) -> dict[str, Any]:
    """One accepted token a line, the current one first, its predecessor after it while keys rotate."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": object_meta(pool, tokens_name(pool.name)),
        "data": {
            port: base64.b64encode("".join(f"{each}\n" for each in accepted).encode()).decode()
            for port, accepted in sorted(tokens.by_port.items())
        },
    }
