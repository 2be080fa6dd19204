"""Files whose pages are not in memory, and how fast the disk gives them. Used by bench/parts/cold.py."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

CHUNK = 8 << 20


def drop_pages(paths: Sequence[Path]) -> None:
    """Ask the kernel to forget the files' pages (posix_fadvise DONTNEED); they must be on the disk and not mapped."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_bandwidth(paths: Sequence[Path]) -> float:
    """Bytes a second of reading the files one after another, their pages dropped before and after."""
    drop_pages(paths)
    buffer, total = memoryview(bytearray(CHUNK)), 0
    started = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    seconds = time.perf_counter() - started
    drop_pages(paths)
    return total / seconds
