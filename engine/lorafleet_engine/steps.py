"""What the steps of a loop take: sums for whoever wants to know what a step costs, and what the next one is likely to
take. Owned by loop.py; decides nothing."""

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


class StepTimes:
    """What steps of a shape took lately. Shapes are told apart by GRAIN: prompts' tokens, and decodes."""

    GRAIN = (64, 32)
    GROWTH, SHRINK = 1.05, 0.9
    """A step that took longer than its like counts for GROWTH times that at most: it may have been a hiccup. Of one
    that had ended when it was looked at nobody knows when it did: its like are expected to be shorter from then on."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[tuple[int, int], float] = {}

    def learn(self, seconds: float, plan: StepPlan, *, late: bool) -> None:
        """Note a step that took so long, or was found to have ended by then (`late`)."""
        shape = self._shape(plan)
        before = self._taken.get(shape, seconds)
        self._taken[shape] = min(seconds, before) * self.SHRINK if late else min(seconds, before * self.GROWTH)

    def expected(self, plan: StepPlan) -> float:
        """Seconds; 0 for a step unlike any before."""
        return self._taken.get(self._shape(plan), 0.0)

    def _shape(self, plan: StepPlan) -> tuple[int, int]:
        tokens, decodes = self.GRAIN
        return (plan.tokens - plan.decodes) // tokens, plan.decodes // decodes
