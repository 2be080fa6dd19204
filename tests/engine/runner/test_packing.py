"""Page tables are listed without gaps at the end of a step's ints, and no more of those is copied than is read."""

import numpy as np
import pytest

from lorafleet_contracts.capacity import ModelShape
from lorafleet_engine.memory.geometry import ZERO_PAGE, pages_for_tokens, pool_geometry
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.runner.graphs import rounded
from lorafleet_engine.runner.packing import StepPacker, StepShape, exact_shape
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan, Work

GEOMETRY = pool_geometry(ModelShape(2, 32, 64, 2, 1, 16, 320), 4)
MOST_PAGES = 9
STALE = -77


def work(first_page: int, start: int, count: int) -> Work:
    sequence = Sequence(str(first_page), list(range(start + count)), 50)
    sequence.pages += range(first_page, first_page + pages_for_tokens(start + count) + 1)
    return Work(sequence, start, count, True)


def tables(plan: StepPlan, shape: StepShape) -> list[list[int]]:
    """What each row's or chunk's table holds, of what is copied."""
    out = np.full(shape.size, STALE, dtype=np.int32)
    used = StepPacker(GEOMETRY, 8, MOST_PAGES, 0).pack(plan, None, shape, out)
    assert (out[used:] == STALE).all()
    fields = {name: out[:used][where] for name, where in shape.offsets().items()}
    tokens = [*fields["lengths"], *(end for _, end in shape.chunks)]
    return [
        fields["tables"][start : start + pages_for_tokens(int(length))].tolist()
        for start, length in zip(fields["table_starts"], tokens, strict=True)
    ]


@pytest.mark.parametrize("lengths", [[0], [5, 31, 32], [100, 15, 16, 17, 3]])
def test_rows_have_their_pages_and_padding_the_zero_page(lengths: list[int]) -> None:
    works = [work(10 + 20 * number, length, 1) for number, length in enumerate(lengths)]
    plan = StepPlan(tuple(works), len(works), ())
    shape = rounded(exact_shape(plan, None), MOST_PAGES, StepLimits())
    wanted = [one.sequence.pages[: pages_for_tokens(one.start + 1)] for one in works]
    assert tables(plan, shape) == wanted + [[ZERO_PAGE]] * (shape.decodes - len(works))


def test_chunks_come_behind_the_decodes() -> None:
    works = [work(10, 40, 1), work(30, 3, 1), work(50, 7, 1), work(70, 0, 33), work(90, 16, 16)]
    plan = StepPlan(tuple(works), 3, ())
    shape = rounded(exact_shape(plan, None), MOST_PAGES, StepLimits())
    pages = [one.sequence.pages[: pages_for_tokens(one.start + one.count)] for one in works]
    assert tables(plan, shape) == [*pages[:3], [ZERO_PAGE], *pages[3:]]


def test_one_shape_whatever_the_contexts() -> None:
    shapes = {
        rounded(exact_shape(StepPlan((work(10, start, 1), work(40, 1, 1)), 2, ()), None), MOST_PAGES, StepLimits())
        for start in (0, 20, 130)
    }
    assert len(shapes) == 1
