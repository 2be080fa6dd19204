"""Versions come, are used, drain and go; their bytes, pages and rows come back."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lorafleet_engine.errors import DoesNotFitError
from lorafleet_engine.memory.pages import Owner, PagePool
from lorafleet_engine.memory.residency import Residency, Resident
from tests.support.cases import cases

BUDGET, ROWS, FLOOR, PAGE = 1000, 40, 4, 100


def residency(pages: int = 16) -> tuple[Residency, PagePool]:
    pool = PagePool(pages + 2, 2)
    return Residency(pool, BUDGET, ROWS, FLOOR), pool


def test_unused_version_leaves_at_once() -> None:
    held, pool = residency()
    held.place("a", 250, 3, 8)
    assert held.remove("a")
    assert (held.bytes, pool.free, "a" in held) == (0, 16, False)


def test_used_version_drains() -> None:
    held, pool = residency()
    held.place("a", 250, 3, 8)
    first, second = held.acquire("a"), held.acquire("a")
    assert first is second
    assert first is not None
    assert not held.remove("a")
    assert held.acquire("a") is None
    assert not held.release(first)
    assert held.bytes == 250
    assert held.release(first)
    assert (held.bytes, pool.free, held.versions()) == (0, 16, ())


def test_unknown_version() -> None:
    held, _ = residency()
    assert held.acquire("a") is None
    assert held.get("a") is None
    with pytest.raises(KeyError):
        held.remove("a")


@pytest.mark.parametrize(
    ("size", "pages", "rank", "what", "free"),
    [
        (BUDGET + 1, 1, 1, "adapter bytes", BUDGET),
        (10, 13, 1, "adapter pages", 12),
        (10, 1, ROWS, "rows of rank", ROWS - 1),
    ],
)
def test_what_does_not_fit_says_why(size: int, pages: int, rank: int, what: str, free: int) -> None:
    held, pool = residency()
    with pytest.raises(DoesNotFitError) as caught:
        held.place("a", size, pages, rank)
    assert (caught.value.what, caught.value.free) == (what, free)
    assert (held.bytes, pool.free) == (0, 16)


def test_pages_that_kv_holds_are_not_taken() -> None:
    held, pool = residency()
    pool.take(14, Owner.KV)
    held.check(100, 3, 1)
    with pytest.raises(DoesNotFitError):
        held.place("a", 100, 3, 1)
    assert held.bytes == 0


@pytest.mark.parametrize("rank", [0, 8])
def test_placed_twice_or_without_rank(rank: int) -> None:
    held, _ = residency()
    held.place("a", 10, 1, 8)
    with pytest.raises(ValueError, match="resident already or has no rank"):
        held.place("a" if rank else "b", 10, 1, rank)


class VersionsAddUp(RuleBasedStateMachine):
    """Versions load, are used, drain and go in any order, between KV blocks that take and give single pages."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.pool = residency()
        self.users: list[Resident] = []
        self.kv: list[int] = []

    @rule(name=st.sampled_from("abcdef"), size=st.integers(1, 600), rank=st.integers(1, 20), loading=st.booleans())
    def place(self, name: str, size: int, rank: int, *, loading: bool) -> None:
        """Whatever fits is placed, wherever its pages lie."""
        if name in self.held:
            return
        pages = -(-size // PAGE)
        room = self.held.bytes + size <= BUDGET and rank <= ROWS - 1 - len(self.rows())
        room = room and pages <= self.pool.total - FLOOR - self.pool.held(Owner.ADAPTER)
        if room and pages <= self.pool.free:
            self.held.place(name, size, pages, rank).loading = loading
        else:
            with pytest.raises(DoesNotFitError):
                self.held.place(name, size, pages, rank)

    @rule(count=st.integers(1, 5))
    def take_kv(self, count: int) -> None:
        if count <= self.pool.free:
            self.kv += self.pool.take(count, Owner.KV)

    @rule(data=st.data())
    def give_kv(self, data: st.DataObject) -> None:
        if self.kv:
            self.pool.give([self.kv.pop(data.draw(st.integers(0, len(self.kv) - 1)))], Owner.KV)

    @rule(name=st.sampled_from("abcdef"), whole=st.booleans())
    def arrive(self, name: str, *, whole: bool) -> None:
        resident = self.held.get(name)
        if resident is None or not resident.loading:
            return
        if whole:
            assert self.held.arrive(resident) == resident.draining
        else:
            self.held.discard(resident)

    def rows(self) -> list[int]:
        return [row for version in self.held.versions() for row in version.rows]

    @rule(name=st.sampled_from("abcdef"))
    def use(self, name: str) -> None:
        resident = self.held.acquire(name)
        if resident is not None:
            self.users.append(resident)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.users:
            user = self.users.pop(data.draw(st.integers(0, len(self.users) - 1)))
            gone = self.held.release(user)
            assert gone == (user.draining and user not in self.users)

    @rule(name=st.sampled_from("abcdef"))
    def remove(self, name: str) -> None:
        if name in self.held:
            resident = self.held.get(name)
            assert resident is not None
            assert self.held.remove(name) == (resident not in self.users and not resident.loading)

    @invariant()
    def sums_match(self) -> None:
        versions = self.held.versions()
        assert self.held.bytes == sum(version.bytes for version in versions) <= BUDGET
        assert self.pool.held(Owner.ADAPTER) == sum(len(version.pages) for version in versions)
        assert self.pool.held(Owner.ADAPTER) <= self.pool.total - FLOOR
        assert self.pool.free == self.pool.total - self.pool.held(Owner.ADAPTER) - len(self.kv)
        pages = [page for version in versions for page in version.pages] + self.kv
        assert len(set(pages)) == len(pages)
        rows = self.rows()
        assert len(set(rows)) == len(rows)
        assert all(0 < row < ROWS for row in rows)
        self.held.check(0, 0, ROWS - 1 - len(rows))
        assert len({version.owner for version in versions}) == len(versions)
        assert all(version in versions and not version.loading for version in self.users)
        assert all(version.requests == self.users.count(version) for version in versions)


TestVersions = VersionsAddUp.TestCase
TestVersions.settings = settings(max_examples=cases(40, one_in=10), stateful_step_count=30, deadline=None)


def test_a_loading_version_holds_its_pages_but_serves_nobody() -> None:
    held, pool = residency()
    resident = held.place("a", 100, 3, 4)
    resident.loading = True
    assert held.acquire("a") is None
    assert pool.free == 13
    assert not held.arrive(resident)
    assert held.acquire("a") is resident


def test_removed_while_loading_it_is_gone_on_arrival() -> None:
    held, pool = residency()
    resident = held.place("a", 100, 3, 4)
    resident.loading = True
    assert not held.remove("a")
    assert pool.free == 13, "a copy still writes to its pages"
    assert held.arrive(resident)
    assert (pool.free, held.bytes, held.get("a")) == (16, 0, None)


def test_a_load_that_failed_leaves_nothing() -> None:
    held, pool = residency()
    resident = held.place("a", 100, 3, 4)
    resident.loading = True
    held.discard(resident)
    assert (pool.free, held.bytes, held.get("a")) == (16, 0, None)
    held.place("a", 1000, 3, 39)
