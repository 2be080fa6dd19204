"""The simulated API server and its controllers: statuses as written, StatefulSets whose pods take time to start.

Called by the run. It does what kube-apiserver, the StatefulSet controller and the kubelet do for our objects, no more.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lorafleet_contracts.admin import VersionState
from lorafleet_contracts.names import LABEL_SET, split_version_key
from lorafleet_contracts.resources.adapter import LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolStatus
from lorafleet_contracts.resources.tenant import TenantStatus
from lorafleet_operator.core.actions import Apply, Delete, StatusWrite
from lorafleet_operator.core.manifests.identity import fingerprint
from lorafleet_operator.core.snapshot import Adapter, Pool, Replica, Tenant, Workload
from lorafleet_operator.simulation.batch import Answers
from lorafleet_operator.simulation.clock import Clock
from lorafleet_operator.simulation.engines import Engine, EngineProfile

STATEFUL_SET = "StatefulSet/"
ZONES = ("zone-a", "zone-b", "zone-c")


@dataclass(slots=True)
class Pod:
    """An engine pod; `engine` is None until it is ready, and while it restarts."""

    name: str
    set: str
    number: int
    template: str
    engine: Engine | None = None


@dataclass(slots=True)
class _Set:
    """A StatefulSet; pods below `partition` keep an old template. `merged` is the version that its engines merge."""

    replicas: int = 0
    template: str = ""
    partition: int = 0
    merged: str = ""
    pods: dict[int, Pod] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        return len(self.pods) == self.replicas and all(pod.template == self.template for pod in self.pods.values())


class Cluster:
    """Users' objects, our objects and pods."""

    def __init__(
        self,
        clock: Clock,
        profile: EngineProfile,
        objects: tuple[Pool, Iterable[Adapter], Iterable[Tenant]],
        on_change: Callable[[], None],
        held: Mapping[str, Sequence[VersionState]],
    ) -> None:
        """`held` are versions that the first life of a pod has from its start."""
        self.answers = Answers()
        self._clock = clock
        self._profile = profile
        self._on_change = on_change
        self.pool = objects[0]
        self.adapters = {each.meta.uid: each for each in objects[1]}
        self.tenants = {each.meta.uid: each for each in objects[2]}
        self.applied: dict[str, str] = {}
        self._sets: dict[str, _Set] = {}
        self._names: dict[str, str] = {}
        self._boots = 0
        self._held = dict(held)

    def apply(self, action: Apply) -> None:
        """Store one of our objects; a StatefulSet's pods follow."""
        self.applied[action.key] = action.fingerprint
        if action.key.startswith(STATEFUL_SET):
            name = action.manifest["metadata"]["labels"][LABEL_SET]
            self._names[action.key] = name
            self._scale(name, action.manifest)

    def delete(self, action: Delete) -> None:
        """Forget one of our objects; a StatefulSet's pods go with it."""
        self.applied.pop(action.key, None)
        if action.key in self._names:
            for pod in self._sets.pop(self._names.pop(action.key)).pods.values():
                _end(pod)
            self._on_change()

    def write(self, write: StatusWrite) -> None:
        """Store a status."""
        status = write.status
        if isinstance(status, LoraPoolStatus):
            self.pool = replace(self.pool, status=status)
        elif isinstance(status, LoraAdapterStatus):
            self.adapters[write.uid] = replace(self.adapters[write.uid], status=status)
        elif isinstance(status, TenantStatus):
            self.tenants[write.uid] = replace(self.tenants[write.uid], status=status)

    def pods(self) -> list[Pod]:
        """All pods, sets by name and pods by number."""
        return [pod for _, each in sorted(self._sets.items()) for _, pod in sorted(each.pods.items())]

    def engine(self, replica: str) -> Engine | None:
        """The running engine of a pod."""
        return next((pod.engine for pod in self.pods() if pod.name == replica), None)

    def gpus(self) -> Mapping[str, int]:
        """Pods by set, running or not: what is paid for."""
        return {name: len(each.pods) for name, each in self._sets.items() if each.pods}

    def workloads(self) -> dict[str, Workload]:
        """The StatefulSets as their controller sees them, by the set's name."""
        return {name: Workload(each.replicas, each.settled) for name, each in self._sets.items()}

    def replicas(self) -> tuple[Replica, ...]:
        """The pods with their engines' states. Each has a node of its own, nodes take turns among zones."""
        now = self._clock.now
        return tuple(
            Replica(
                name=pod.name,
                ready=pod.engine is not None,
                deleting=False,
                current=pod.template == self._sets[pod.set].template,
                state=pod.engine.state(now) if pod.engine else None,
                set=pod.set,
                node=f"node-of-{pod.name}",
                zone=ZONES[pod.number % len(ZONES)],
            )
            for pod in self.pods()
        )

    def lose(self, replica: str) -> None:
        """End an engine without a word; its pod starts anew, with nothing on it."""
        pod = next((each for each in self.pods() if each.name == replica), None)
        if pod is not None:
            if pod.engine is not None:
                pod.engine.lose(self._clock.now)
            pod.engine = None
            self._start(pod)
            self._on_change()

    def _scale(self, name: str, manifest: Mapping[str, Any]) -> None:
        spec = manifest["spec"]
        found = self._sets.setdefault(name, _Set())
        found.replicas, found.template = spec["replicas"], fingerprint(spec["template"])
        rolling = spec.get("updateStrategy", {}).get("rollingUpdate") or {}
        found.partition, found.merged = rolling.get("partition", 0), _merged(spec["template"])
        for number in range(found.replicas):
            if number not in found.pods:
                pod = Pod(f"{manifest['metadata']['name']}-{number}", name, number, found.template)
                found.pods[number] = pod
                self._start(pod)
        for number in [each for each in found.pods if each >= found.replicas]:
            _end(found.pods.pop(number))
        self._roll(found)
        self._on_change()

    def _roll(self, found: _Set) -> None:
        """Restart the last pod that still runs an older template, when all others are ready."""
        old = [pod for pod in found.pods.values() if pod.template != found.template and pod.number >= found.partition]
        if old and all(pod.engine is not None for pod in found.pods.values()):
            pod = max(old, key=lambda each: each.number)
            _end(pod)
            pod.template = found.template
            self._start(pod)

    def _start(self, pod: Pod) -> None:
        def ready() -> None:
            found = self._sets.get(pod.set)
            if found is None or found.pods.get(pod.number) is not pod or pod.engine is not None:
                return
            self._boots += 1
            merged = split_version_key(found.merged) if found.merged else None
            pod.engine = Engine(pod.name, f"boot-{self._boots}", self._profile, self.answers, merged)
            for version in self._held.pop(pod.name, ()):
                pod.engine.put(version)
            self._roll(found)
            self._on_change()

        self._clock.after(self._profile.start_seconds, ready)


def _end(pod: Pod) -> None:
    """An engine that is told to end answers first what it has."""
    if pod.engine is not None:
        pod.engine.finish()
    pod.engine = None


def _merged(template: Mapping[str, Any]) -> str:
    environment = {each["name"]: each.get("value", "") for each in template["spec"]["containers"][0]["env"]}
    return str(environment.get("LORAFLEET_MERGE_VERSION", ""))
