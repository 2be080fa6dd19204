"""Sums over the steps of a loop, for whoever wants to know what a step costs. Owned by loop.py; decides nothing."""

from lorafleet_engine.scheduler.sequence import StepPlan
from lorafleet_engine.stepsums import StepSums


class StepMeter:
    """Adds steps up for as long as the loop lives: one call a step."""

    __slots__ = ("_all", "_decodes")

    def __init__(self) -> None:
        self._all = (0, 0.0)
        self._decodes = (0, 0.0, 0, 0, 0, 0, 0, 0.0, 0.0)

    def add(self, seconds: float, plan: StepPlan) -> None:
        """Count a step that has just ended."""
        steps, spent = self._all
        self._all = steps + 1, spent + seconds
        sequences = plan.decodes
        if sequences != len(plan.works):
            return  # chunks of prompts: their cost is another one
        ranks = plan.rank_sum
        count, time, n, r, nn, rr, nr, tn, tr = self._decodes
        self._decodes = (
            count + 1,
            time + seconds,
            n + sequences,
            r + ranks,
            nn + sequences * sequences,
            rr + ranks * ranks,
            nr + sequences * ranks,
            tn + seconds * sequences,
            tr + seconds * ranks,
        )

    def sums(self) -> StepSums:
        """All that was counted so far."""
        return StepSums(*(self._all + self._decodes))
