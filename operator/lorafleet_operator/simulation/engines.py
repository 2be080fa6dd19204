"""A simulated engine: what it holds on which tier, what it serves, and the state that it tells. Called by the cluster.

Bytes are integers, times are epoch seconds of the simulated clock. It answers like the real state port, and refuses
what does not fit like the real admin port.
"""

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
from lorafleet_operator.simulation.batch import Answers, Asked, Batch, StepTime

GATEWAY = "simulated"
UsageKey = tuple[str, str]
"""A tenant (`namespace/name`) and a version key."""


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What all engines of a run are like.

    Rates are bytes per second from the source, the disk tier and the host tier, each to the next.
    """

    base: str
    memory: MemoryBudget
    step: StepTime
    start_seconds: float = 120.0
    source_rate: float = 500e6
    disk_rate: float = 2e9
    host_rate: float = 50e9

    def load_seconds(self, size: int, tier: Tier | None) -> float:
        """From a tier (None: the source) to the GPU."""
        seconds = 0.001 + size / self.host_rate
        if tier in (None, Tier.DISK):
            seconds += 0.01 + size / self.disk_rate
        if tier is None:
            seconds += 0.05 + size / self.source_rate
        return seconds


@dataclass(slots=True)
class Engine:
    """One life of one replica. `merged` is the (uid, digest) in its weights, `on_disk` are digests it has files of."""

    name: str
    boot_id: str
    profile: EngineProfile
    answers: Answers
    merged: tuple[str, str] | None = None
    draining: bool = False
    versions: dict[str, VersionState] = field(default_factory=dict)
    on_disk: set[str] = field(default_factory=set)
    served: int = 0
    _batch: Batch = field(init=False)
    _usage: dict[UsageKey, UsageState] = field(default_factory=dict)
    _counts: dict[UsageKey, list[int]] = field(default_factory=dict)
    _used_at: dict[str, int] = field(default_factory=dict)
    _seq: int = 0

    def __post_init__(self) -> None:
        self._batch = Batch(self.profile.step, self.answers)

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
        for asked in self._batch.advance(now):
            counts = self._counts.setdefault(asked.usage, [0, 0, 0])
            counts[0] += 1
            counts[1] += asked.prompt
            counts[2] += asked.answer
            self._usage.pop(asked.usage, None)
        return len(self._batch)

    def serve(self, usage: UsageKey, tokens: tuple[int, int], now: float, extra: float) -> None:
        """Take one request whose adapter takes `extra` seconds to come; its steps are shared with all others."""
        self.served += 1
        rank = 0
        if not self.merged and usage[1] in self.versions:
            rank = self.versions[usage[1]].rank
            self._used_at[usage[1]] = self.served
            self.raise_version(usage[1], for_request=True)
        self._batch.add(Asked(usage, *tokens, rank, now), extra)

    def finish(self) -> None:
        """Answer what is there, before it ends."""
        self._batch.finish()

    def lose(self, now: float) -> None:
        """End without a word."""
        self.outstanding(now)
        self._batch.lose()

    def state(self, now: float) -> EngineState:
        """What its state port answers."""
        self._seq += 1
        memory, outstanding = self.profile.memory, self.outstanding(now)
        queue = self._batch.waiting
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
            steps=self._batch.sums(now),
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
