"""Which full KV blocks are known by what they hold, so that equal beginnings are computed once. Used by scheduler/.

A block is named by a chain of hashes: BLAKE2b over the name of the block before it and its own tokens. The chain starts
at a seed made of the version's key ("" for the base) and the scope, the tenant unless tenants share: nobody can find
what another version or scope computed. 256 bits, so no two chains meet, even on purpose. Blocks lie in pages of the
pool, which loses those that nobody holds when it needs pages, the longest unused first.
"""

from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from hashlib import blake2b

from lorafleet_contracts.capacity import KV_BLOCK_TOKENS
from lorafleet_engine.memory.pages import PagePool

NAME_BYTES = 32


@dataclass(slots=True, eq=False)
class Chain:
    """The names of a sequence's full blocks, as far as they were needed; they never change."""

    version: str
    seed: bytes
    names: list[bytes] = field(default_factory=list)

    def reach(self, tokens: Items[int], blocks: int) -> None:
        """Name the first `blocks` blocks of `tokens`, which must hold that many full ones."""
        names = self.names
        for block in range(len(names), blocks):
            start = block * KV_BLOCK_TOKENS
            contents = array("q", tokens[start : start + KV_BLOCK_TOKENS]).tobytes()
            before = names[-1] if names else self.seed
            names.append(blake2b(before + contents, digest_size=NAME_BYTES).digest())


class PrefixCache:
    """Blocks by name. `shared` lets all tenants find each other's; else each tenant has its own.

    `queried` and `hit` count the tokens of prompts that were looked up, and those found.
    """

    def __init__(self, pool: PagePool, *, shared: bool = False) -> None:
        self._pool = pool
        self._shared = shared
        self._pages: dict[bytes, int] = {}
        self._names: dict[int, tuple[str, bytes]] = {}
        self._versions: dict[str, set[int]] = {}
        self.queried = 0
        self.hit = 0
        pool.on_loss = self._forget

    def __len__(self) -> int:
        return len(self._pages)

    def chain(self, version: str, tenant: str) -> Chain:
        """The beginning of all sequences of this version and tenant."""
        scope = ("shared",) if self._shared else ("tenant", tenant)
        seed = blake2b(repr((version, *scope)).encode(), digest_size=NAME_BYTES).digest()
        return Chain(version, seed)

    def find(self, chain: Chain, tokens: Items[int]) -> list[int]:
        """Pages of the longest known beginning of `tokens`, which always leaves at least one token to compute."""
        chain.reach(tokens, blocks := (len(tokens) - 1) // KV_BLOCK_TOKENS)
        found: list[int] = []
        for name in chain.names[:blocks]:
            page = self._pages.get(name)
            if page is None:
                break
            found.append(page)
        return found

    def learn(self, chain: Chain, tokens: Items[int], pages: Items[int], first: int, end: int) -> None:
        """Blocks [first, end) of `tokens` are computed, in the pages of the same numbers. A known one stays."""
        chain.reach(tokens, end)
        for block in range(first, end):
            name, page = chain.names[block], pages[block]
            if name not in self._pages and page not in self._names:
                self._pool.keep(page)
                self._pages[name] = page
                self._names[page] = (chain.version, name)
                self._versions.setdefault(chain.version, set()).add(page)

    def count(self, prompt_tokens: int, found: int) -> None:
        """Count a prompt that was looked up and how many of its tokens were found."""
        self.queried += prompt_tokens
        self.hit += found

    def drop(self, version: str) -> None:
        """Forget all blocks of a version that is gone."""
        for page in tuple(self._versions.get(version, ())):
            self.unlearn(page)

    def unlearn(self, page: int) -> None:
        """Forget the block in a page, if it is known."""
        if page in self._names:
            self._pool.unkeep(page)
            self._forget(page)

    def _forget(self, page: int) -> None:
        version, name = self._names.pop(page)
        del self._pages[name]
        pages = self._versions[version]
        pages.remove(page)
        if not pages:
            del self._versions[version]
