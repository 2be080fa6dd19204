"""The lists of work of any step: every token's output is made once, from all hidden values of its own adapter."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorafleet_engine.kernels.lora import FEW_TOKENS, MANY_TOKENS, TileShape
from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import StepLimits
from lorafleet_engine.runner.lora_work import lora_work, most_work
from lorafleet_engine.scheduler.sequence import Sequence, StepPlan, Work
from tests.support.cases import cases

RANKS = st.lists(st.sampled_from([1, 5, 8, 16, 17, 32, 64]), min_size=1, max_size=8)


def adapters(ranks: list[int]) -> list[Resident]:
    """Row numbers begin at 1 and follow one another."""
    ends = list(accumulate(ranks, initial=1))
    return [
        Resident(str(number), rank, 0, (), tuple(range(ends[number], ends[number + 1])))
        for number, rank in enumerate(ranks)
    ]


@pytest.mark.parametrize("shape", [FEW_TOKENS, MANY_TOKENS], ids=["few", "many"])
@given(ranks=RANKS, data=st.data())
@settings(max_examples=cases(100), deadline=None)
def test_every_token_and_tile_once(shape: TileShape, ranks: list[int], data: st.DataObject) -> None:
    residents = adapters(ranks)
    choice = st.sampled_from([None, *residents])
    chosen = data.draw(st.lists(st.tuples(choice, st.integers(1, 90)), min_size=1, max_size=12))
    decodes = data.draw(st.integers(0, len(chosen)))
    padding = data.draw(st.integers(0, 3)) if decodes else 0
    works = tuple(
        Work(Sequence(str(number), [1] * 100, 4, adapter=adapter), 0, 1 if number < decodes else count, True)
        for number, (adapter, count) in enumerate(chosen)
    )
    used = tuple({adapter.owner: adapter for adapter, _ in chosen if adapter is not None}.values())
    work = lora_work(StepPlan(works, decodes, used), shape, decodes + padding)
    if not used:
        assert work is None
        return
    assert work is not None
    owners: list[Resident | None] = []
    for number, one in enumerate(works):
        owners += [None] * (padding if number == decodes else 0) + [one.sequence.adapter] * one.count
    owners += [None] * (padding if decodes == len(works) else 0)
    lists = {name: values.tolist() for name, values in work.lists.items()}
    assert sorted(lists["order"]) == list(range(len(owners)))
    assert lists["counts"] == [work.sizes.pairs, work.sizes.segments]

    hidden: dict[tuple[int, int], tuple[int, int]] = {}
    for pair, (tile, start, count) in enumerate(
        zip(lists["pair_tile"], lists["pair_start"], lists["pair_count"], strict=True)
    ):
        assert 0 < count <= shape.pair_tokens
        for slot in range(count):
            hidden[pair, slot] = (lists["order"][start + slot], tile)
    seen = []
    segments = ("segment_start", "segment_count", "segment_tile", "segment_tiles", "segment_place")
    for start, count, tile, tiles, place in zip(*(lists[name] for name in segments), strict=True):
        assert 0 < count <= shape.tokens
        for slot, token in enumerate(lists["order"][start : start + count]):
            seen.append(token)
            adapter = owners[token]
            assert (adapter is None) == (tiles == 0)
            rows = lists["rows"][tile * shape.ranks : (tile + tiles) * shape.ranks]
            assert adapter is None or (*adapter.rows, *[0] * (len(rows) - adapter.rank)) == tuple(rows)
            first, within = divmod(place, shape.pair_tokens)
            for number in range(tiles):
                assert hidden[first + number, within + slot] == (token, tile + number)
    assert sorted(seen) == list(range(len(owners)))

    tightest = StepLimits(distinct_adapters=len(used), rank_sum=sum(adapter.rank for adapter in used))
    rows, most = most_work(len(owners), shape, tightest)
    assert len(lists["rows"]) <= rows
    assert work.sizes.segments <= most.segments
    assert work.sizes.pairs <= most.pairs
