"""One adapter's case as far as it is known before placement. Called by the planning; composes admission and verdict."""

from collections.abc import Mapping
from dataclasses import dataclass

from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_operator.core.admission import oldest_by_model, refuse_adapter
from lorafleet_operator.core.conditions import Refusal
from lorafleet_operator.core.snapshot import Adapter, InspectionKey, PoolSnapshot
from lorafleet_operator.core.verification import Verification, verify


@dataclass(frozen=True, slots=True)
class Case:
    """An adapter, why the pool does not accept it (`denial`), and what is known of its files."""

    adapter: Adapter
    denial: Refusal | None
    verification: Verification

    @property
    def suspended(self) -> bool:
        """Whether its owner wants it unloaded."""
        return self.adapter.spec is not None and self.adapter.spec.suspend

    @property
    def declared(self) -> bool:
        """Whether the spec itself names the digest of its files."""
        return self.adapter.spec is not None and self.adapter.spec.source.digest is not None

    @property
    def refusal(self) -> Refusal | None:
        """Why it can't be served as the spec says, before any placement."""
        return self.denial or self.verification.refusal

    @property
    def revoked(self) -> bool:
        """Whether even the version that serves must go: what was allowed no longer is, the spec being the same."""
        refusal = self.refusal
        if refusal is None:
            return False
        same_spec = self.adapter.status.verified_generation == self.adapter.meta.generation
        return same_spec or refusal.reason in (Reason.NAMESPACE_NOT_ALLOWED, Reason.POOL_NOT_FOUND)

    @property
    def serving(self) -> str | None:
        """The digest that tenants get now, by the last verdict."""
        return self.adapter.status.digest

    @property
    def target(self) -> str | None:
        """The digest that should serve, None while it is unknown or must not."""
        facts = self.verification.facts
        return None if facts is None or self.refusal or self.suspended else facts.digest

    @property
    def inspection(self) -> InspectionKey:
        """What an inspection of this generation is remembered by."""
        return InspectionKey(self.adapter.meta.uid, self.adapter.meta.generation)


def assess(snapshot: PoolSnapshot, spec: LoraPoolSpec) -> list[Case]:
    """Every adapter's case, in the order of the snapshot."""
    winners = oldest_by_model([each for each in snapshot.adapters if not each.meta.deleting])
    living = (each for each in snapshot.adapters if not each.meta.deleting)
    return [_assess_one(each, snapshot, spec, winners) for each in living]


def _assess_one(
    adapter: Adapter, snapshot: PoolSnapshot, spec: LoraPoolSpec, winners: Mapping[tuple[str, str], str]
) -> Case:
    denial = refuse_adapter(adapter, snapshot.pool.meta, spec, snapshot.namespaces, winners)
    if denial:
        return Case(adapter, denial, Verification())
    key = InspectionKey(adapter.meta.uid, adapter.meta.generation)
    return Case(adapter, None, verify(adapter, spec, snapshot.memory.inspections.get(key)))
