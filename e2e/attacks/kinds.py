"""The table of all attacks: each kind by its name, with what makes its attacks and says what came of them."""

from collections.abc import Callable, Iterator, Mapping

from e2e.attacks import api, objects, ports
from e2e.attacks.siege import Outcome, Siege

Kind = Callable[[Siege], Iterator[Outcome]]
KINDS: Mapping[str, Kind] = {
    "foreign adapters and guessed names": api.foreign_names,
    "header spoofing": api.spoofed_headers,
    "key brute force": api.key_trials,
    "oversized and malformed requests": api.bodies,
    "a tenant's pod at engine ports and inner ports": ports.tenants_pods,
    "the gateway's pod at the admin port": ports.gateways_pod,
    "engine ports with other tokens, past the policies": ports.tokens,
    "SSRF and path escapes in sources": objects.sources,
    "archive bombs and files without end": objects.archives,
    "hostile safetensors headers": objects.safetensors,
    "more than `tenancy` allows": objects.claims,
    "a namespace that the pool does not admit": objects.strangers,
    "model names squatted across namespaces": objects.squats,
    "slow-loris": api.slowness,
}
"""The last one comes last: it waits for what the first moment began."""
