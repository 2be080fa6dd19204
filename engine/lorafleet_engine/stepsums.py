"""What the loop tells of its steps, as part of its state. Filled by steps.py; plain values, as messages.py has them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepSums:
    """Monotonic sums over all steps, and over those that only decode: `sequences` and `rank_sum` (of the distinct
    adapters) of each, and their products among themselves and with the seconds it took."""

    steps: int = 0
    seconds: float = 0.0
    decode_steps: int = 0
    decode_seconds: float = 0.0
    sequences: int = 0
    rank_sum: int = 0
    sequences_squared: int = 0
    rank_squared: int = 0
    sequences_rank: int = 0
    seconds_sequences: float = 0.0
    seconds_rank: float = 0.0
