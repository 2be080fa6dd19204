"""A copier whose copies take time, as they do on a GPU, by the test's own clock."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lorafleet_engine.memory.residency import Resident
from lorafleet_engine.messages import BlobRef
from lorafleet_engine.runner.copier import Arrival, Copier


@dataclass
class SlowCopier:
    """Copies one after another, `load_s` each, by the test's own clock."""

    behind: Copier
    now: Callable[[], float]
    load_s: float
    due: list[float] = field(default_factory=list)
    arrived: list[Arrival] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return bool(self.due)

    def submit(self, resident: Resident, blob: BlobRef, file: int) -> None:
        self.behind.submit(resident, blob, file)
        self.arrived += self.behind.poll()
        self.due.append(max([self.now(), *self.due]) + self.load_s)

    def poll(self) -> list[Arrival]:
        done = sum(at <= self.now() for at in self.due)
        news, self.arrived, self.due = self.arrived[:done], self.arrived[done:], self.due[done:]
        return news
