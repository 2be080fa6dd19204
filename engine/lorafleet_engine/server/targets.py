"""Who a serving request is for, read from the headers that the gateway set. Called by serving.py."""

from dataclasses import dataclass

from starlette.datastructures import Headers

from lorafleet_contracts.names import BASE_MODEL, HEADER_GATEWAY, HEADER_MODEL, HEADER_TENANT, HEADER_WEIGHT
from lorafleet_engine.server.engine import Engine
from lorafleet_engine.server.openai_errors import invalid, unavailable
from lorafleet_engine.server.usage import UsageKey
from lorafleet_engine.server.version import Version


@dataclass(frozen=True, slots=True)
class Target:
    """The version that answers (None: the base) and for whom. `window` and `vocabulary` are the base model's."""

    version: Version | None
    tenant: str
    weight: int
    gateway: str
    window: int
    vocabulary: int
    base_digest: str | None

    @property
    def adapter(self) -> str | None:
        """The version's key for the loop; None where the weights alone answer."""
        return None if self.version is None or self.version.merged else self.version.key

    @property
    def usage_key(self) -> UsageKey:
        """The row that this request counts for."""
        return UsageKey(self.tenant, BASE_MODEL if self.version is None else self.version.key, self.gateway)

    @property
    def fingerprint(self) -> str | None:
        """What `system_fingerprint` says."""
        return self.base_digest if self.version is None else self.version.digest

    @property
    def label(self) -> str:
        """The adapter's name in metrics."""
        if self.version is None:
            return BASE_MODEL
        return f"{self.version.display.namespace}/{self.version.display.name}"


def find_target(headers: Headers, engine: Engine) -> Target:
    """The target of a request. Raises OpenAIError: 400 without the header, 503 + retry when it is not here."""
    wanted = headers.get(HEADER_MODEL, "")
    if not wanted:
        raise invalid(f"the header {HEADER_MODEL} must name the version to answer", code="version_required")
    if not engine.ready or engine.loop.ready is None:
        raise unavailable("this engine is draining" if engine.draining else "this engine is starting", "not_ready")
    base = wanted == BASE_MODEL and engine.versions.merged is None
    version = None if base else engine.versions.find(wanted)
    if version is None and not base:
        raise unavailable("this engine does not have the version asked for", "version_missing")
    return Target(
        version=version,
        tenant=headers.get(HEADER_TENANT, "")[:256],
        weight=read_weight(headers.get(HEADER_WEIGHT, "1")),
        gateway=headers.get(HEADER_GATEWAY, "")[:256],
        window=engine.loop.ready.max_model_len,
        vocabulary=engine.loop.ready.vocab_size,
        base_digest=engine.base_digest,
    )


def read_weight(text: str) -> int:
    """What is no weight counts as the usual one: only the gateway sends it, and a request need not fail for it."""
    weight = int(text) if len(text) <= 4 and text.isascii() and text.isdigit() else 0
    return weight or 1
