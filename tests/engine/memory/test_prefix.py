"""Blocks by name: found by equal beginnings only, lost when pages are needed, the longest unused first."""

import pytest

from lorafleet_engine.memory.pages import Owner, PagePool
from lorafleet_engine.memory.prefix import Chain, PrefixCache

TOKENS = list(range(100))


def cache(pages: int = 8, *, shared: bool = False) -> tuple[PrefixCache, PagePool]:
    pool = PagePool(pages + 2, 2)
    return PrefixCache(pool, shared=shared), pool


def compute(made: PrefixCache, pool: PagePool, chain: Chain, tokens: list[int]) -> list[int]:
    """What a sequence does that finds nothing: take pages, fill them, let go."""
    pages = pool.take(-(-len(tokens) // 16), Owner.KV)
    made.learn(chain, tokens, pages, 0, len(tokens) // 16)
    pool.give(reversed(pages), Owner.KV)
    return pages


def test_the_longest_known_beginning_is_found() -> None:
    made, pool = cache()
    pages = compute(made, pool, made.chain("v", "t"), TOKENS[:50])
    assert (pool.free, pool.kept_free, len(made)) == (8, 3, 3)
    assert made.find(made.chain("v", "t"), TOKENS) == pages[:3]
    assert made.find(made.chain("v", "t"), [*TOKENS[:20], 7, *TOKENS[21:]]) == pages[:1]
    assert made.find(made.chain("v", "t"), [7, *TOKENS[1:]]) == []


def test_one_token_is_always_left() -> None:
    made, pool = cache()
    pages = compute(made, pool, made.chain("v", "t"), TOKENS[:32])
    assert made.find(made.chain("v", "t"), TOKENS[:32]) == pages[:1]
    assert made.find(made.chain("v", "t"), TOKENS[:33]) == pages[:2]


@pytest.mark.parametrize(
    ("version", "tenant", "shared", "found"),
    [
        ("v", "t", False, 2),
        ("w", "t", False, 0),
        ("v", "u", False, 0),
        ("v", "u", True, 2),
        ("w", "t", True, 0),
        ("", "t", False, 0),
    ],
)
def test_versions_and_tenants_are_apart(version: str, tenant: str, shared: bool, found: int) -> None:
    made, pool = cache(shared=shared)
    compute(made, pool, made.chain("v", "t"), TOKENS[:40])
    assert len(made.find(made.chain(version, tenant), TOKENS)) == found


def test_the_longest_unused_is_lost_first_and_beginnings_last() -> None:
    made, pool = cache(pages=6)
    compute(made, pool, made.chain("v", "t"), TOKENS[:48])
    other = [token + 1000 for token in TOKENS]
    compute(made, pool, made.chain("v", "t"), other[:48])
    found = made.find(made.chain("v", "t"), TOKENS)
    pool.share(found)
    pool.give(reversed(found), Owner.KV)
    pool.take(2, Owner.ADAPTER)
    assert len(made.find(made.chain("v", "t"), other)) == 1
    pool.take(2, Owner.ADAPTER)
    assert len(made.find(made.chain("v", "t"), other)) == 0
    assert len(made.find(made.chain("v", "t"), TOKENS)) == 2
    assert pool.free == 2


def test_held_blocks_are_not_lost() -> None:
    made, pool = cache(pages=4)
    compute(made, pool, made.chain("v", "t"), TOKENS[:40])
    found = made.find(made.chain("v", "t"), TOKENS)
    pool.share(found)
    pool.share(found)
    pool.take(2, Owner.ADAPTER)
    assert (pool.free, pool.held(Owner.KV)) == (0, 2)
    pool.give(found, Owner.KV)
    assert (pool.free, pool.held(Owner.KV)) == (0, 2)
    pool.give(found, Owner.KV)
    assert (pool.free, pool.kept_free) == (2, 2)


def test_a_version_that_is_gone_is_forgotten() -> None:
    made, pool = cache()
    compute(made, pool, made.chain("v", "t"), TOKENS[:40])
    base = compute(made, pool, made.chain("", "t"), TOKENS[:40])
    made.drop("v")
    assert made.find(made.chain("v", "t"), TOKENS) == []
    assert made.find(made.chain("", "t"), TOKENS) == base[:2]
    assert (pool.free, pool.kept_free) == (8, 2)
