"""Attention: the kernels against double precision, over lengths, chunks, groups of heads and splits."""

import math
from dataclasses import replace

import pytest
import torch

from lorafleet_engine.kernels.attention import reference
from lorafleet_engine.kernels.attention.contexts import CacheLayout, StepContexts
from lorafleet_engine.kernels.rope import HeadNorms, Heads, NewTokens
from lorafleet_engine.kernels.rope.reference import rotate_and_store
from tests.engine.kernels.test_elementwise_kernel import DTYPES, error

pytestmark = pytest.mark.gpu

BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
PAGE = 16
SMALL, ODD, QWEN = Heads(4, 2, 16), Heads(3, 1, 24), Heads(28, 4, 128)
GROUPS = [
    pytest.param(Heads(8, 8, 128), id="group1"),
    pytest.param(Heads(9, 3, 64), id="group3"),
    pytest.param(Heads(32, 8, 128), id="group4"),
    pytest.param(Heads(14, 2, 64), id="group7"),
    pytest.param(Heads(16, 2, 80), id="group8"),
    pytest.param(Heads(8, 8, 96), id="dim96"),
    pytest.param(Heads(8, 2, 256), id="dim256"),
]


class Case:
    """Decodes of `lengths` and chunks of (earlier tokens, tokens), over pages that lie scattered; all else is NaN."""

    def __init__(
        self,
        heads: Heads,
        lengths: list[int],
        chunks: list[tuple[int, int]],
        device: torch.device,
        dtype: torch.dtype,
        window: int | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(len(lengths) + 7 * len(chunks))
        self.ends = [*lengths, *(sum(chunk) for chunk in chunks)]
        self.counts = [*(1 for _ in lengths), *(count for _, count in chunks)]
        tables = [-(-end // PAGE) for end in self.ends]
        free = (torch.randperm(sum(tables) + 5, generator=generator) + 1)[: sum(tables)]
        page_rows = 2 * PAGE
        starts = [1 + sum(tables[:number]) for number in range(len(tables))]
        pages = torch.cat((torch.zeros(1, dtype=torch.int64), free))
        self.rows = [
            pages[start + torch.arange(end) // PAGE] * page_rows + torch.arange(end) % PAGE
            for start, end in zip(starts, self.ends, strict=True)
        ]
        shape = (sum(tables) + 6) * page_rows, heads.kv * heads.dim
        used = torch.cat(self.rows)
        self.keys, self.values = (torch.full(shape, math.nan, dtype=dtype) for _ in range(2))
        for cache in (self.keys, self.values):
            cache[used] = torch.randn(len(used), shape[1], generator=generator).to(dtype)
        self.keys, self.values = self.keys.to(device), self.values.to(device)
        self.query = torch.randn(sum(self.counts), heads.query, heads.dim, generator=generator).to(device, dtype)

        def ints(numbers: list[int]) -> torch.Tensor:
            return torch.tensor(numbers, dtype=torch.int32, device=device)

        self.contexts = StepContexts(
            CacheLayout(PAGE, page_rows, 0),
            heads,
            pages.to(device, torch.int32),
            ints(starts),
            ints(lengths),
            ints([start for start, _ in chunks]),
            ints([count for _, count in chunks]),
            tuple((count, start + count) for start, count in chunks),
            window,
        )

    def exact(self) -> torch.Tensor:
        """Every token over the rows up to its own, in double precision."""
        heads, out, at = self.contexts.heads, [], 0
        for rows, end, count in zip(self.rows, self.ends, self.counts, strict=True):
            own = rows.to(self.keys.device)
            key = self.keys[own].double().view(end, heads.kv, 1, heads.dim)
            value = self.values[own].double().view(end, heads.kv, heads.dim)
            for first in range(at, at + count, 256):
                query = self.query[first : min(first + 256, at + count)].double()
                grouped = query.view(len(query), heads.kv, -1, heads.dim)
                score = torch.einsum("qhgd,nhxd->qhgn", grouped, key) / math.sqrt(heads.dim)
                place = end - count + first - at + torch.arange(len(query), device=own.device)
                token = torch.arange(end, device=own.device)
                hidden = (token > place[:, None]) | (token <= place[:, None] - (self.contexts.window or end))
                chance = score.masked_fill(hidden[:, None, None], -math.inf).softmax(-1)
                out.append(torch.einsum("qhgn,nhd->qhgd", chance, value).reshape(query.shape))
            at += count
        return torch.cat(out)


def check(case: Case, spread: tuple[int, int] | None = None, splits: int = 0, least: int = 0) -> None:
    """The kernels as the engine sets them (or at another spread, or with contexts of chunks split otherwise): right
    everywhere, and the same again."""
    from lorafleet_engine.kernels.attention import kernel

    dtype = case.query.dtype
    work = kernel.list_work(case.contexts, dtype)
    if spread:
        work = kernel.listed(case.contexts, work.tile, work.chunk_tile, kernel.Spread(*spread))
    if splits:
        tile = replace(work.chunk_tile, splits=splits, least=least)
        work = kernel.listed(case.contexts, work.tile, tile, kernel.spread_of(case.contexts.decodes))
    for scratch in (work.partial, work.stats, *work.shared[1:]):
        scratch.fill_(math.nan)
    out = torch.full_like(case.query, math.nan)
    kernel.attend_into(out, case.query, case.keys, case.values, work)
    assert error(out, case.exact()) < BOUNDS[dtype]
    again = torch.full_like(case.query, math.nan)
    kernel.attend_into(again, case.query, case.keys, case.values, work)
    assert torch.equal(out, again)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "lengths"),
    [
        pytest.param(SMALL, [1, 17, 170], id="small"),
        pytest.param(ODD, [40], id="small-odd"),
        (QWEN, [200]),
        (QWEN, [1, 15, 16, 17, 200, 256, 129, 64]),
        (QWEN, [200 + n % 7 for n in range(64)]),
        (QWEN, [1, 4096, 3000, 2047] * 16),
        (QWEN, [1 + n * 20 for n in range(250)]),
        (QWEN, [30_000]),
        (QWEN, [30_000, *(5 for _ in range(255))]),
    ],
)
def test_decode(device: torch.device, dtype: torch.dtype, heads: Heads, lengths: list[int]) -> None:
    check(Case(heads, lengths, [], device, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [(1, 64), (3, 64), (11, 64), (200, 64), (66, 4096)])
@pytest.mark.parametrize(
    "lengths", [[300], [9000, 20], [1, 700, 64, 65, 129, 1200], pytest.param([1, 600, 64], id="small-splits")]
)
def test_splits(device: torch.device, dtype: torch.dtype, lengths: list[int], spread: tuple[int, int]) -> None:
    check(Case(SMALL, lengths, [], device, dtype), spread)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "lengths", "chunks"),
    [
        pytest.param(SMALL, [], [(0, 1), (0, 40), (50, 30)], id="small"),
        pytest.param(ODD, [33, 1], [(17, 90), (0, 2)], id="small-odd"),
        (QWEN, [], [(0, 128)] * 64),
        (QWEN, [], [(0, 1), (0, 2), (0, 17), (0, 18), (0, 19), (0, 64), (1, 63), (0, 65), (16, 500)]),
        (QWEN, [], [(0, 5000)]),
        (QWEN, [], [(6144, 2048)]),
        (QWEN, [200] * 64, [(1000, 448), (0, 1000), (31_990, 10)]),
        (QWEN, [5000], [(4097 * n, 3) for n in range(8)]),
        (QWEN, [], [(n, 1 + n % 9) for n in range(250)]),
    ],
)
def test_chunks(
    device: torch.device, dtype: torch.dtype, heads: Heads, lengths: list[int], chunks: list[tuple[int, int]]
) -> None:
    check(Case(heads, lengths, chunks, device, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", GROUPS)
def test_groups_and_widths(device: torch.device, dtype: torch.dtype, heads: Heads) -> None:
    check(Case(heads, [77, 3, 900, 1], [(0, 70), (120, 130), (3, 1)], device, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "window", "lengths", "chunks"),
    [
        pytest.param(SMALL, 1, [1, 40], [(0, 40)], id="small-itself"),
        pytest.param(SMALL, 50, [1, 50, 51, 333], [(0, 60), (200, 40)], id="small"),
        (Heads(32, 8, 128), 4096, [4095, 4096, 4097, 9000, 30_000], [(0, 5000), (6000, 500), (4090, 20)]),
        (QWEN, 100, [n + 1 for n in range(200)], [(n, 70) for n in range(0, 400, 7)]),
    ],
)
def test_window(
    device: torch.device,
    dtype: torch.dtype,
    heads: Heads,
    window: int,
    lengths: list[int],
    chunks: list[tuple[int, int]],
) -> None:
    check(Case(heads, lengths, chunks, device, dtype, window))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("heads", "lengths", "window"),
    [
        pytest.param(SMALL, [1, 17, 170], None, id="small"),
        pytest.param(ODD, [40, 3, 300], 33, id="small-window"),
        (QWEN, [200, 1, 16, 64, 4097], None),
        (QWEN, [1 + n * 20 for n in range(250)], None),
        (QWEN, [30_000], 4096),
        *(pytest.param(*group.values, [77, 3, 900], None, id=group.id) for group in GROUPS),
    ],
)
def test_rotate_and_attend(
    device: torch.device, dtype: torch.dtype, normed: bool, heads: Heads, lengths: list[int], window: int | None
) -> None:
    """One launch does what rotating, storing and attending do, and leaves the rest of the cache alone."""
    from lorafleet_engine.kernels.attention import kernel

    case = Case(heads, lengths, [], device, dtype, window)
    slots = torch.stack([rows[-1] for rows in case.rows]).to(device)
    rows = torch.randn(len(lengths), (heads.query + 2 * heads.kv) * heads.dim).to(device, dtype)
    cos, sin = torch.rand(len(lengths), 2, 1, heads.dim // 2, device=device).mul(2).sub(1).unbind(1)
    new = NewTokens(slots, cos, sin)
    norms = None
    if normed:
        norms = HeadNorms(*(torch.randn(2, heads.dim, device=device) + 1).to(dtype).unbind(), 1e-6)
    cache = case.keys.clone(), case.values.clone()
    for half in cache:
        half[slots] = math.nan
    out = kernel.rotate_and_attend(rows, new, cache, norms, kernel.list_work(case.contexts, dtype))
    case.query = rotate_and_store(rows, heads, new, (case.keys, case.values), norms)
    assert error(out, case.exact()) < BOUNDS[dtype]
    assert error(cache[0][slots], case.keys[slots].double()) < BOUNDS[dtype]
    cache[0][slots] = case.keys[slots]
    for got, wanted in zip(cache, (case.keys, case.values), strict=True):
        assert torch.equal(got.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("splits", "least"), [(2, 16), (8, 256)])
@pytest.mark.parametrize(
    ("heads", "lengths", "chunks", "window"),
    [
        pytest.param(SMALL, [], [(0, 40), (150, 3), (63, 5), (64, 1)], None, id="small"),
        pytest.param(ODD, [3], [(150, 9)], 33, id="small-window"),
        (QWEN, [200] * 9, [(8000, 192)], None),
        (QWEN, [], [(1024, 1), (5000, 64), (0, 30), (63, 5), (8191, 1)], None),
        *(pytest.param(*group.values, [], [(700, 33)], None, id=group.id) for group in GROUPS),
    ],
)
def test_chunks_in_splits(
    device: torch.device,
    dtype: torch.dtype,
    splits: int,
    least: int,
    heads: Heads,
    lengths: list[int],
    chunks: list[tuple[int, int]],
    window: int | None,
) -> None:
    """Also where a row sees nothing in the last split, and where a context has fewer blocks than splits."""
    check(Case(heads, lengths, chunks, device, dtype, window), None, splits, least)


@pytest.mark.parametrize("window", [None, 9])
def test_small_mix_as_the_reference(device: torch.device, window: int | None) -> None:
    """The two forms read the same numbers."""
    from lorafleet_engine.kernels.attention import kernel

    case = Case(SMALL, [1, 17, 70], [(0, 5), (33, 20)], device, torch.float32, window)
    cache = [torch.nan_to_num(cache) for cache in (case.keys, case.values)]
    wanted = reference.attend(case.query, *cache, reference.gathered(case.contexts, torch.float32))
    got = kernel.attend(case.query, *cache, kernel.list_work(case.contexts, torch.float32))
    assert error(got, wanted) < 2e-6


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")  # of nothing by nothing, never stored
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [pytest.param(SMALL, id="small"), QWEN])
def test_chunks_that_a_graph_has_room_for(device: torch.device, dtype: torch.dtype, heads: Heads) -> None:
    """On the host one chunk of more tokens and several of none, on the device what there really is."""
    from lorafleet_engine.kernels.attention import kernel

    case = Case(heads, [33, 1], [(17, 40), (0, 3)], device, dtype)
    real, told, count = case.contexts, case.query, case.query.shape[0]
    pad = torch.zeros(2, dtype=torch.int32, device=device)
    contexts = replace(
        real,
        table_starts=torch.cat([real.table_starts, pad]),
        chunk_starts=torch.cat([real.chunk_starts, pad]),
        chunk_counts=torch.cat([real.chunk_counts, pad]),
        chunks=((90, 512), (0, 0), (0, 0), (0, 0)),
    )
    query = torch.cat([told, told.new_full((47, *told.shape[1:]), math.nan)])
    out = torch.full_like(query, math.nan)
    kernel.attend_into(out, query, case.keys, case.values, kernel.list_work(contexts, dtype))
    assert error(out[:count], case.exact()) < BOUNDS[dtype]
    assert out[count:].isnan().all()


def test_neighbours_do_not_matter(device: torch.device) -> None:
    """A sequence's splits depend on the step's lengths: what changes is rounding only."""
    from lorafleet_engine.kernels.attention import kernel

    case = Case(QWEN if device.type == "cuda" else SMALL, [300, 20], [(10, 30)], device, torch.float32)
    with pytest.raises(ValueError, match="at most"):
        kernel.list_work(Case(SMALL, [1] * 1025, [], device, torch.float32).contexts, torch.float32)
    check(case)


def test_spread_small() -> None:
    """Equal contexts of many sequences are not cut."""
    from lorafleet_engine.kernels.attention.kernel import spread_of

    for sequences in (1, 16, 64, 256):
        spread = spread_of(sequences)
        assert 32 <= spread.more <= max(sequences, 50)
        if sequences >= 64:
            assert sequences * 4096 // spread.more >= 4096
