"""How a published config scales its rotary positions. Read by config.py, turned into angles by rope.py; torch-free."""

import math
from dataclasses import dataclass
from typing import Any

DYNAMIC = (
    "rope scaling 'dynamic' turns all earlier keys anew as a sequence grows, which a shared cache cannot follow; "
    "remove it from config.json: within max_position_embeddings, which is all that is served, it changes nothing"
)


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """`kind` is "default", "linear", "llama3" or "yarn".

    Frequencies are divided by `factor`: all of them (linear), or those that turn less than `slow_turns` times over
    `original_positions`, with a ramp up to `fast_turns`, from where on none are (llama3, yarn). Cosines and sines are
    multiplied by `attention_factor`. `whole_bounds`: yarn's ramp begins and ends at whole dimensions.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_positions: int = 0
    slow_turns: float = 1.0
    fast_turns: float = 1.0
    attention_factor: float = 1.0
    whole_bounds: bool = True

    @property
    def positions(self) -> int:
        """Positions that the scaling says it reaches, 0 where it does not say so."""
        return int(self.original_positions * self.factor) if self.kind == "yarn" else 0


def rope_reasons(raw: dict[str, Any]) -> list[str]:
    """Return what `read_rope` would compute wrongly."""
    rope = _published(raw)
    kind = _kind(rope)
    if any(isinstance(value, dict) for value in rope.values()):
        return ["rope parameters that differ by layer are not supported"]
    reasons = []
    if kind == "dynamic":
        reasons.append(DYNAMIC)
    elif kind not in ("default", "linear", "llama3", "yarn"):
        reasons.append(f"rope scaling {kind!r} is none of ['default', 'linear', 'llama3', 'yarn']")
    partial = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1):
        reasons.append(f"partial_rotary_factor {partial} is not supported, only whole heads are rotated")
    return reasons


def read_rope(raw: dict[str, Any]) -> RopeSettings:
    """Read the settings as transformers 5 does. Raises KeyError, TypeError or ValueError for a file that is broken."""
    rope = _published(raw)
    theta = float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    if not 1 < theta < math.inf:
        raise ValueError(f"rope_theta is {theta}")
    kind = _kind(rope)
    if kind == "default":
        return RopeSettings(theta)
    if kind == "linear":
        return RopeSettings(theta, kind, factor=_factor(rope["factor"]))
    positions = int(raw["max_position_embeddings"])
    original = int(raw.get("original_max_position_embeddings", rope.get("original_max_position_embeddings", positions)))
    if original < 1:
        raise ValueError(f"original_max_position_embeddings is {original}")
    if kind == "llama3":
        slow, fast = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        settings = RopeSettings(theta, kind, _factor(rope["factor"]), original, slow, fast)
    else:
        slow, fast = float(rope.get("beta_slow") or 1), float(rope.get("beta_fast") or 32)
        factor = positions / original if rope["factor"] is None else _factor(rope["factor"])
        attention, whole = _attention_factor(rope, factor), bool(rope.get("truncate", True))
        settings = RopeSettings(theta, kind, factor, original, slow, fast, attention, whole)
    if not 0 < slow < fast:
        raise ValueError(f"rope scaling {kind!r} ramps from {slow} to {fast} turns")
    return settings


def _published(raw: dict[str, Any]) -> dict[str, Any]:
    """Newer files put theta and scaling into `rope_parameters`, older ones scaling alone into `rope_scaling`, which
    decides where a file has both."""
    found = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(found, dict):
        raise TypeError(f"the rope settings are {found!r}, not an object")
    return found


def _kind(rope: dict[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def _factor(value: float) -> float:
    factor = float(value)
    if not 0 < factor < math.inf:
        raise ValueError(f"rope scaling has factor {factor}")
    return factor


def _attention_factor(rope: dict[str, Any], factor: float) -> float:
    """Yarn sharpens attention by the logarithm of its factor where the file does not say by how much."""
    given = rope.get("attention_factor")
    if given is not None:
        return float(given)
    stretch = math.log(max(factor, 1.0)) / 10
    numerator, denominator = float(rope.get("mscale") or 0), float(rope.get("mscale_all_dim") or 0)
    if numerator and denominator:
        return (numerator * stretch + 1) / (denominator * stretch + 1)
    return stretch + 1
