"""Which sets of replicas a pool should have, and how large. Called by the planning once a plan; places no adapter."""

from collections.abc import Sequence
from dataclasses import dataclass

from lorafleet_contracts.names import SHARED_SET
from lorafleet_contracts.resources.pool import LoraPoolSpec, Replicas
from lorafleet_operator.core.assessment import Case
from lorafleet_operator.core.sets import EngineSet
from lorafleet_operator.core.snapshot import PoolSnapshot
from lorafleet_operator.core.view import View


@dataclass(frozen=True, slots=True)
class Fleet:
    """The sets that should be there, the shared one first."""

    sets: tuple[EngineSet, ...]


def decide_fleet(snapshot: PoolSnapshot, spec: LoraPoolSpec, cases: Sequence[Case], view: View) -> Fleet:
    """The sets for this moment, from the spec."""
    return Fleet((EngineSet(SHARED_SET, "Shared", shared_size(spec.replicas)),))


def shared_size(replicas: Replicas) -> int:
    """How many replicas the shared set has: as its owner says within the bounds, else the least."""
    if replicas.mode == "Managed":
        return replicas.min
    wanted = max(replicas.desired, replicas.min)
    return wanted if replicas.max is None else min(wanted, replicas.max)
