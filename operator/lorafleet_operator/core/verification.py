"""What is known of an adapter's files, and whether the pool can serve them. Called by the planning; asks nobody."""

from dataclasses import dataclass

from lorafleet_contracts.admin import AdapterReport
from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_operator.core.conditions import Refusal
from lorafleet_operator.core.problems import explain, needs_owner, retry_at
from lorafleet_operator.core.ranks import is_above, refuse_rank
from lorafleet_operator.core.snapshot import Adapter, Attempt
from lorafleet_operator.core.sources import trust_mark


@dataclass(frozen=True, slots=True)
class Facts:
    """What verified files hold; `bytes` once packed. `warnings` None: taken from the status, which keeps none."""

    digest: str
    bytes: int
    rank: int
    target_modules: tuple[str, ...]
    warnings: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Verification:
    """The state of knowledge. At most one of `facts` and `refusal` counts; `trouble` is passing.

    `due`: epoch second from which an inspection may start (None: none is wanted or one runs).
    """

    facts: Facts | None = None
    refusal: Refusal | None = None
    trouble: Refusal | None = None
    due: float | None = None


def verify(adapter: Adapter, spec: LoraPoolSpec, attempt: Attempt | None, *, isolated: bool = False) -> Verification:
    """Judge an accepted adapter by its status or by what inspection told about this generation.

    `isolated`: a tenant that has its own set of replicas calls it, so that no rank class need hold it.
    """
    mark = trust_mark(each.public_key for each in spec.trust.signers)
    facts = _recorded(adapter, mark)
    if facts is not None:
        return _judge(facts, "", spec, isolated)
    if attempt is None or (attempt.trust != mark and not attempt.pending):
        return Verification(due=0.0)
    if attempt.report is not None and attempt.trust == mark:
        return _judge(_facts_of(attempt.report), attempt.report.base, spec, isolated)
    due = None if attempt.pending else retry_at(attempt)
    if attempt.problem is None:
        return Verification(due=due)
    declared = adapter.spec is not None and adapter.spec.source.digest is not None
    told = explain(attempt.problem, declared)
    if needs_owner(attempt):
        return Verification(refusal=told, due=due)
    return Verification(trouble=told if attempt.failures > 1 else None, due=due)


def undeclared(base: str) -> bool:
    """Whether an adapter's `base_model_name_or_path` names no published model: empty, or a path of some machine."""
    return not base or base[0] in "/.~"


def _recorded(adapter: Adapter, mark: str) -> Facts | None:
    """Facts of an earlier verification: of this generation, or of the very files that the spec declares by digest.

    By the signers of this `mark`, where there must be some: when they change, all is verified anew.
    """
    status = adapter.status
    declared = adapter.spec.source.digest if adapter.spec else None
    same = status.verified_generation == adapter.meta.generation or declared == status.verified_digest
    if status.verified_digest is None or not same or (mark and status.verified_by != mark):
        return None
    return Facts(
        digest=status.verified_digest,
        bytes=status.bytes or 0,
        rank=status.rank or 0,
        target_modules=tuple(status.target_modules),
        warnings=None,
    )


def _facts_of(report: AdapterReport) -> Facts:
    warnings = tuple(report.warnings)
    if undeclared(report.base):
        warnings += (f"BaseUndeclared: adapter_config.json names no published base (but {report.base!r})",)
    return Facts(report.digest, report.bytes, report.rank, tuple(sorted(report.target_modules)), warnings)


def _judge(facts: Facts, base: str, spec: LoraPoolSpec, isolated: bool) -> Verification:
    names = (spec.base_model.name, *spec.base_model.aliases)
    if not undeclared(base) and base not in names:
        return Verification(
            facts,
            Refusal(
                Reason.BASE_MISMATCH,
                f"the adapter was trained on {base!r}, the pool serves {', '.join(names)}. Point poolRef to that "
                "base's pool, or list the name in the pool's baseModel.aliases",
            ),
        )
    if facts.warnings is not None and undeclared(base) and spec.trust.require_digest:
        return Verification(
            facts,
            Refusal(
                Reason.BASE_MISMATCH,
                f"adapter_config.json names no published base (but {base!r}), and the pool requires digests. Set "
                f"base_model_name_or_path to one of {', '.join(names)}",
            ),
        )
    foreign = sorted(set(facts.target_modules) - set(spec.target_modules))
    if foreign:
        return Verification(
            facts,
            Refusal(
                Reason.TARGET_MODULE_NOT_ALLOWED,
                f"the adapter changes {', '.join(foreign)}; the pool allows {', '.join(spec.target_modules)}. "
                "Train without them, or extend the pool's targetModules",
            ),
        )
    if is_above(facts.rank, spec.rank_classes.ceilings) and not isolated:
        return Verification(facts, refuse_rank(facts.rank, spec))
    return Verification(facts)
