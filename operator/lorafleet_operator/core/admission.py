"""May this pool serve this adapter at all? Rules that need no file. Called by the planning of a pool; does no I/O."""

from collections.abc import Mapping, Sequence

from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.resources.adapter import LoraAdapterSpec
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_contracts.selectors import admits
from lorafleet_operator.core.conditions import Refusal
from lorafleet_operator.core.snapshot import Adapter, Meta
from lorafleet_operator.core.sources import refuse_source


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
    return (
        _refuse_base(adapter.spec, pool, spec)
        or refuse_source(adapter.spec.source.uri, namespace, pool, spec)
        or _refuse_undigested(adapter.spec, pool, spec)
    )


def _refuse_undigested(adapter: LoraAdapterSpec, pool: Meta, spec: LoraPoolSpec) -> Refusal | None:
    if adapter.source.digest is not None or not spec.trust.require_digest:
        return None
    return Refusal(
        Reason.DIGEST_REQUIRED,
        f"pool {pool.namespace}/{pool.name} takes only adapters that name their digest (trust.requireDigest). "
        "Set spec.source.digest to what `lorafleet digest DIR` prints",
    )


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
