"""May this pool serve this adapter at all? Rules that need no file. Called by the planning of a pool; does no I/O."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.resources.adapter import LoraAdapterSpec
from lorafleet_contracts.resources.pool import LoraPoolSpec, SourceRule
from lorafleet_contracts.selectors import admits
from lorafleet_operator.core.conditions import Refusal
from lorafleet_operator.core.snapshot import Adapter, Meta

_ESCAPED = ("%2e", "%2f", "%5c", "%00")


def model_name(adapter: Adapter) -> str:
    """What a client sends as `model`."""
    return (adapter.spec.model if adapter.spec else None) or adapter.meta.name


def refuse_adapter(
    adapter: Adapter,
    pool: Meta,
    spec: LoraPoolSpec,
    namespaces: Mapping[str, Mapping[str, str]],
    winners: Mapping[tuple[str, str], str],
) -> Refusal | None:
    """Why the pool does not accept the adapter, or None. `winners` is what `oldest_by_model` returned."""
    if adapter.spec is None:
        return Refusal(Reason.INVALID, adapter.invalid)
    namespace = adapter.meta.namespace
    if not admits(spec.allowed_namespaces, pool.namespace, namespace, namespaces.get(namespace, {})):
        return refuse_namespace(pool, namespace)
    model = model_name(adapter)
    if model in (spec.base_model.name, *spec.base_model.aliases):
        return Refusal(
            Reason.NAME_RESERVED, f"{model!r} names the base model of pool {pool.name}. Choose another spec.model"
        )
    winner = winners[namespace, model]
    if winner != adapter.meta.name:
        return Refusal(
            Reason.NAME_CONFLICT,
            f"adapter {winner} of this namespace is older and serves as {model!r}. Choose another spec.model",
        )
    return _refuse_base(adapter.spec, pool, spec) or refuse_source(adapter.spec.source.uri, namespace, pool, spec)


def _refuse_base(adapter: LoraAdapterSpec, pool: Meta, spec: LoraPoolSpec) -> Refusal | None:
    """Bases of one name and shape can still be others: only the digests tell."""
    trained_on, served = adapter.trained_on, spec.base_model.digest
    if trained_on is None or trained_on.digest == served:
        return None
    if served is None:
        return Refusal(
            Reason.BASE_MISMATCH,
            f"spec.trainedOn cannot be compared: pool {pool.namespace}/{pool.name} does not declare its base's digest. "
            "Its owner can set baseModel.digest (`lorafleet digest DIR` prints it), or remove trainedOn",
        )
    return Refusal(
        Reason.BASE_MISMATCH,
        f"the adapter was trained on a base of digest {trained_on.digest}, pool {pool.namespace}/{pool.name} serves "
        f"{served}. Point poolRef to that base's pool, or correct spec.trainedOn",
    )


def refuse_namespace(pool: Meta, namespace: str) -> Refusal:
    """The verdict on an object of a namespace that the pool does not admit."""
    return Refusal(
        Reason.NAMESPACE_NOT_ALLOWED,
        f"pool {pool.namespace}/{pool.name} does not admit namespace {namespace}. "
        "Its owner can list it in allowedNamespaces",
    )


def refuse_excess(pool: Meta, why: str) -> Refusal:
    """The verdict on an object that asks for more than is left for its namespace."""
    return Refusal(
        Reason.EXCEEDS_POOL_LIMIT,
        f"{why} of pool {pool.namespace}/{pool.name}. Ask for less, or its owner can raise spec.tenancy",
    )


def refuse_missing_pool(pool: tuple[str, str]) -> Refusal:
    """The verdict on an object that points to no pool."""
    return Refusal(
        Reason.POOL_NOT_FOUND, f"there is no LoraPool {pool[1]} in namespace {pool[0]}. Create it, or correct poolRef"
    )


def oldest_by_model(adapters: Sequence[Adapter]) -> dict[tuple[str, str], str]:
    """(namespace, model) -> name of the oldest adapter that claims it; by name within a second, as in the gateway."""
    winners: dict[tuple[str, str], str] = {}
    for adapter in sorted(adapters, key=lambda each: (each.meta.created, each.meta.name)):
        winners.setdefault((adapter.meta.namespace, model_name(adapter)), adapter.meta.name)
    return winners


def refuse_source(uri: str, namespace: str, pool: Meta, spec: LoraPoolSpec) -> Refusal | None:
    """Why the pool's policy forbids an address, or None."""
    parts = urlsplit(uri)
    if _is_devious(uri):
        return _not_allowed(f"{uri} is not plain: no user, query, fragment, escape or `..`")
    if parts.scheme == "pvc":
        volumes = sorted(str(volume.get("name", "")) for volume in spec.engine.pod.volumes)
        if parts.netloc not in volumes:
            return _not_allowed(f"pool {pool.name} has no volume {parts.netloc!r}, only {', '.join(volumes) or 'none'}")
    rules = spec.sources.allow
    if not rules and parts.scheme == "pvc" and namespace == pool.namespace:
        return None
    if any(_covers(rule, uri, namespace) for rule in rules):
        return None
    return _not_allowed(
        f"pool {pool.namespace}/{pool.name} does not allow {uri} for namespace {namespace}. "
        "Its owner can list a prefix in sources.allow"
    )


def _not_allowed(message: str) -> Refusal:
    return Refusal(Reason.SOURCE_NOT_ALLOWED, message)


def _is_devious(uri: str) -> bool:
    parts = urlsplit(uri)
    lowered = uri.lower()
    return (
        "@" in parts.netloc
        or bool(parts.query or parts.fragment)
        or "\\" in uri
        or any(not character.isprintable() for character in uri)
        or any(escape in lowered for escape in _ESCAPED)
        or any(segment in (".", "..") for segment in parts.path.split("/"))
    )


def _covers(rule: SourceRule, uri: str, namespace: str) -> bool:
    if rule.namespaces and namespace not in rule.namespaces:
        return False
    allowed, asked = urlsplit(rule.prefix), urlsplit(uri)
    if (allowed.scheme, allowed.netloc.lower()) != (asked.scheme, asked.netloc.lower()):
        return False
    path = allowed.path.rstrip("/")
    # A prefix ends at a path segment: `/acme` must not open `/acme-secret`.
    return asked.path == path or asked.path.startswith(f"{path}/")
