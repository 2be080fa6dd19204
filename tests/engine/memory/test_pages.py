"""The free list: every page has one owner, and nothing is lost."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lorafleet_engine.errors import DoesNotFitError
from lorafleet_engine.memory.pages import Owner, PagePool
from tests.support.cases import cases

PAGES, RESERVED = 12, 2
OWNERS = st.sampled_from([Owner.KV, Owner.ADAPTER])


class PagesKeepTheirOwner(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES, RESERVED)
        self.held: dict[Owner, list[int]] = {Owner.KV: [], Owner.ADAPTER: []}

    @rule(count=st.integers(0, PAGES), owner=OWNERS)
    def take(self, count: int, owner: Owner) -> None:
        free = self.pool.free
        if count > free:
            with pytest.raises(DoesNotFitError) as caught:
                self.pool.take(count, owner)
            assert (caught.value.needed, caught.value.free) == (count, free)
        else:
            self.held[owner] += self.pool.take(count, owner)

    @rule(owner=OWNERS, data=st.data())
    def give(self, owner: Owner, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.held[owner])))
        given, self.held[owner] = self.held[owner][:count], self.held[owner][count:]
        self.pool.give(given, owner)

    @rule(owner=OWNERS, page=st.integers(0, PAGES - 1))
    def give_what_is_not_held(self, owner: Owner, page: int) -> None:
        if page not in self.held[owner]:
            with pytest.raises(ValueError, match="is not held"):
                self.pool.give([page], owner)

    @invariant()
    def every_page_is_somewhere_once(self) -> None:
        taken = [page for pages in self.held.values() for page in pages]
        assert len(set(taken)) == len(taken)
        assert all(RESERVED <= page < PAGES for page in taken)
        assert self.pool.free == self.pool.total - len(taken)
        assert all(self.pool.held(owner) == len(pages) for owner, pages in self.held.items())


TestPages = PagesKeepTheirOwner.TestCase
TestPages.settings = settings(max_examples=cases(30, one_in=10), stateful_step_count=25, deadline=None)
