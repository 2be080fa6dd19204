"""A simulated engine: what it holds on which tier, what it serves, and the state that it tells. Called by the cluster.

Bytes are integers, times are epoch seconds of the simulated clock. It answers like the real state port, and refuses
what does not fit like the real admin port.
"""

import heapq
from dataclasses import dataclass, field

from lorafleet_contracts.admin import (
    BaseState,
    EngineState,
    MemoryState,
    MergedState,
    ParityState,
    Tier,
    UsageState,
    VersionState,
)
from lorafleet_contracts.capacity import MemoryBudget
from lorafleet_contracts.names import version_key

GATEWAY = "simulated"
TOKEN_SECONDS = 0.02
UsageKey = tuple[str, str]
"""A tenant (`namespace/name`) and a version key."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What all engines of a run are like.

    `capacity` is in requests per second, with adapters, `base_capacity` without, both for answers of `answer_tokens` in
    the mean, of which each takes `token_seconds` where it need not wait. Rates are bytes per second from the source,
    the disk tier and the host tier, each to the next.
    """

    base: str
    memory: MemoryBudget
    capacity: float
    base_capacity: float
    answer_tokens: float = 128.0
    token_seconds: float = TOKEN_SECONDS
    start_seconds: float = 120.0
    source_rate: float = 500e6
    disk_rate: float = 2e9
    host_rate: float = 50e9

    @property
    def lanes(self) -> int:
        """Requests that are answered side by side."""
        return max(1, round(self.capacity * self.answer_tokens * self.token_seconds))

    def answer_seconds(self, tokens: int, merged: bool = False) -> float:
        """How long one answer takes, so that all lanes together do what the capacity says."""
        capacity = self.base_capacity if merged else self.capacity
        return tokens * self.lanes / (capacity * self.answer_tokens)

    def load_seconds(self, size: int, tier: Tier | None) -> float:
        """From a tier (None: the source) to the GPU."""
        seconds = 0.001 + size / self.host_rate
        if tier in (None, Tier.DISK):
            seconds += 0.01 + size / self.disk_rate
        if tier is None:
            seconds += 0.05 + size / self.source_rate
        return seconds


class Lanes:
    """So many requests at once; who comes when all are busy waits for the first one that ends."""

    def __init__(self, count: int) -> None:
        self._free_at = [0.0] * count

    def take(self, now: float, seconds: float) -> float:
        """Occupy a lane for `seconds`; returns when that begins."""
        start = max(now, self._free_at[0])
        heapq.heapreplace(self._free_at, start + seconds)
        return start


@dataclass(slots=True)
class Engine:
    """One life of one replica. `merged` is the (uid, digest) in its weights, `on_disk` are digests it has files of."""

    name: str
    boot_id: str
    profile: EngineProfile
    merged: tuple[str, str] | None = None
    draining: bool = False
    versions: dict[str, VersionState] = field(default_factory=dict)
    on_disk: set[str] = field(default_factory=set)
    served: int = 0
    _lanes: Lanes = field(init=False)
    _busy: list[tuple[float, int, UsageKey, int, int]] = field(default_factory=list)
    _usage: dict[UsageKey, UsageState] = field(default_factory=dict)
    _counts: dict[UsageKey, list[int]] = field(default_factory=dict)
    _used_at: dict[str, int] = field(default_factory=dict)
    _seq: int = 0

    def __post_init__(self) -> None:
        self._lanes = Lanes(self.profile.lanes)

    @property
    def merged_version(self) -> str | None:
        """The one version that it answers, where that is in its weights."""
        return version_key(*self.merged) if self.merged else None

    @property
    def used(self) -> int:
        """Bytes of adapters on its GPU."""
        return sum(each.bytes for each in self.versions.values() if each.tier == Tier.GPU)

    def room_for(self, size: int, for_request: bool = False) -> int | None:
        """None when `size` bytes fit on the GPU, else the bytes that are free.

        Those make way that need not be there, the longest unused first; for a request, last, all but pinned ones do.
        """
        budget, used = self.profile.memory.adapters, self.used
        there = [each for each in self.versions.values() if each.tier == Tier.GPU and not each.pinned]
        there.sort(key=lambda each: (each.wanted == Tier.GPU, self._used_at.get(each.key, 0), each.key))
        for victim in there:
            if used + size <= budget or (victim.wanted == Tier.GPU and not for_request):
                break
            lowered = Tier.HOST if victim.wanted == Tier.GPU else victim.wanted
            self.versions[victim.key] = victim.model_copy(update={"tier": lowered})
            self._seq += 1
            used -= victim.bytes
        return None if used + size <= budget else budget - used

    def raise_version(self, key: str, for_request: bool = False) -> None:
        """Bring a version from a slower tier to the GPU, if there is room."""
        version = self.versions[key]
        if version.tier != Tier.GPU and self.room_for(version.bytes, for_request) is None:
            self.versions[key] = version.model_copy(update={"tier": Tier.GPU})
            self._seq += 1

    def put(self, version: VersionState) -> None:
        """Note where a version is in its life."""
        self.versions[version.key] = version
        self.on_disk.add(version.digest)
        self._seq += 1

    def drop(self, key: str) -> None:
        """Free a version; its files stay on the disk tier."""
        if self.versions.pop(key, None) is not None:
            self._seq += 1

    def outstanding(self, now: float) -> int:
        """Requests that it has not answered yet; those that have ended by `now` are counted as usage."""
        busy = self._busy
        while busy and busy[0][0] <= now:
            _, _, usage, prompt, completion = heapq.heappop(busy)
            counts = self._counts.setdefault(usage, [0, 0, 0])
            counts[0] += 1
            counts[1] += prompt
            counts[2] += completion
            self._usage.pop(usage, None)
        return len(busy)

    def serve(self, usage: UsageKey, tokens: tuple[int, int], now: float, extra: float) -> float:
        """Take one request whose adapter takes `extra` seconds to come; returns for how long it waits for its turn.

        Beyond `capacity` requests a second the engine's lanes are all busy, and whatever comes queues.
        """
        seconds = extra + self.profile.answer_seconds(tokens[1], self.merged is not None)
        start = self._lanes.take(now, seconds)
        end = start + seconds
        self.served += 1
        if not self.merged and usage[1] in self.versions:
            self._used_at[usage[1]] = self.served
            self.raise_version(usage[1], for_request=True)
        heapq.heappush(self._busy, (end, self.served, usage, *tokens))
        return start - now

    def state(self, now: float) -> EngineState:
        """What its state port answers."""
        self._seq += 1
        memory, outstanding = self.profile.memory, self.outstanding(now)
        queue = max(outstanding - self.profile.lanes, 0)
        return EngineState(
            boot_id=self.boot_id,
            seq=self._seq,
            full=True,
            ready=True,
            draining=self.draining,
            base=BaseState(name=self.profile.base),
            memory=MemoryState(
                total=memory.total,
                weights=memory.weights,
                activations=memory.activations,
                adapters=memory.adapters,
                adapters_used=self.used,
                kv=memory.kv,
                kv_tokens=memory.kv_tokens,
                kv_tokens_used=0,
            ),
            merged=self._merged_state(),
            versions=list(self.versions.values()),
            in_flight=outstanding - queue,
            queue=queue,
            usage=self._rows(),
        )

    def _merged_state(self) -> MergedState | None:
        """Merged engines are taken to be as near as they must be."""
        if self.merged is None:
            return None
        parity = ParityState(merged=0.001, unmerged=0.001, same_argmax=1.0, positions=1)
        return MergedState(uid=self.merged[0], digest=self.merged[1], parity=parity)

    def _rows(self) -> list[UsageState]:
        for key, (requests, prompt, completion) in self._counts.items():
            if key not in self._usage:
                self._usage[key] = UsageState(
                    tenant=key[0],
                    adapter=key[1],
                    gateway=GATEWAY,
                    requests=requests,
                    prompt_tokens=prompt,
                    completion_tokens=completion,
                )
        return list(self._usage.values())
