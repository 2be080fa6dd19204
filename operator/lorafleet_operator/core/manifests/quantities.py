"""Kubernetes quantities to integers. Called by the manifests; knows only the forms that the CRD admits."""

from fractions import Fraction

_SUFFIXES = {
    "k": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "P": 1000**5,
    "Ki": 1024,
    "Mi": 1024**2,
    "Gi": 1024**3,
    "Ti": 1024**4,
    "Pi": 1024**5,
}


def parse_bytes(quantity: str) -> int:
    """A quantity like `1.5Gi` in bytes, rounded down. Raises ValueError for anything else."""
    number = quantity.rstrip("kMGTPi")
    suffix = quantity[len(number) :]
    if suffix and suffix not in _SUFFIXES:
        raise ValueError(f"not a quantity: {quantity!r}")
    return int(Fraction(number) * _SUFFIXES.get(suffix, 1))
