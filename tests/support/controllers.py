"""A pool's StatefulSets under a controller that does as Kubernetes' does, for tests of whole plans.

Every step takes one second: a plan is made and carried out, then the controller makes, replaces and removes replicas.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from lorafleet_operator.core.actions import Apply, Delete, Plan
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.snapshot import PoolSnapshot, Replica, Workload
from tests.support.fleet import NOW, carry_out, make_state


@dataclass(slots=True)
class StatefulSets:
    """Plays the controllers on a snapshot. `starting` is how many steps a new replica takes until it serves.

    `gone` has the replicas that were ended, in order, each with the versions that only it had answered with.
    """

    snapshot: PoolSnapshot
    now: float = NOW
    starting: int = 2
    gone: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    _templates: dict[str, Any] = field(default_factory=dict)
    _of: dict[str, Any] = field(default_factory=dict)
    _age: dict[str, int] = field(default_factory=dict)

    def step(self) -> Plan:
        """One second."""
        plan = plan_pool(self.snapshot, self.now)
        since = {name: self.snapshot.memory.leaving.get(name, self.now) for name in plan.leaving}
        self.snapshot = carry_out(self.snapshot, plan, self.now)
        self.snapshot = replace(self.snapshot, memory=replace(self.snapshot.memory, leaving=since))
        for action in plan.actions:
            if isinstance(action, Apply) and action.key.startswith("StatefulSet/"):
                self._take(action)
            if isinstance(action, Apply) and action.key == "PodDisruptionBudget/smol-shared":
                self.budgets.append(action.manifest["spec"]["maxUnavailable"])
            if isinstance(action, Delete) and action.key.startswith("StatefulSet/"):
                self._end_set(action.key.removeprefix("StatefulSet/smol-"))
        for name in self.snapshot.workloads:
            self._control(name)
        self.now += 1
        return plan

    def run(self, steps: int) -> None:
        """Several seconds."""
        for _ in range(steps):
            self.step()

    def end(self, name: str) -> None:
        """Take a replica away, as an eviction does; its controller makes it anew."""
        versions = _only_on(self.snapshot, name)
        self.gone.append((name, versions))
        self._of.pop(name, None)
        self.snapshot = replace(
            self.snapshot, replicas=tuple(each for each in self.snapshot.replicas if each.name != name)
        )

    def _take(self, action: Apply) -> None:
        spec, labels = action.manifest["spec"], action.manifest["metadata"]["labels"]
        name = labels["lorafleet.io/set"]
        first = name not in self._templates
        self._templates[name] = str(spec["template"])
        if first:
            self._of |= {each.name: self._templates[name] for each in self.snapshot.replicas if each.set == name}
        partition = spec["updateStrategy"]["rollingUpdate"]["partition"]
        workload = Workload(spec["replicas"], settled=False, partition=partition)
        self.snapshot = replace(self.snapshot, workloads={**self.snapshot.workloads, name: workload})

    def _end_set(self, name: str) -> None:
        for each in [each for each in self.snapshot.replicas if each.set == name]:
            self.end(each.name)

    def _control(self, name: str) -> None:
        workload, template = self.snapshot.workloads[name], self._templates.get(name)
        mine = {int(each.name.rpartition("-")[2]): each for each in self.snapshot.replicas if each.set == name}
        for number in sorted(mine, reverse=True):
            if number >= workload.replicas:
                self.end(mine.pop(number).name)
        for number in sorted(mine, reverse=True):
            current = self._of.get(mine[number].name) == template
            if number >= workload.partition and not current:
                self.end(mine.pop(number).name)
            if number not in mine or not mine[number].usable:
                break  # one after the other
        made = [
            Replica(f"smol-{name}-{n}", False, False, True, None, set=name)
            for n in range(workload.replicas)
            if n not in mine
        ]
        self._of |= {each.name: template for each in made}
        self._age |= {each.name: 0 for each in made}
        replicas = [self._grow(each) if each.set == name else each for each in (*self.snapshot.replicas, *made)]
        old = any(self._of.get(each.name) != template for each in replicas if each.set == name)
        told = replace(workload, settled=not old and not made, rolled_out=not old)
        self.snapshot = replace(
            self.snapshot, replicas=tuple(replicas), workloads={**self.snapshot.workloads, name: told}
        )

    def _grow(self, replica: Replica) -> Replica:
        current = self._of.get(replica.name) == self._templates.get(replica.set)
        if replica.ready:
            return replace(replica, current=current)
        self._age[replica.name] = self._age.get(replica.name, 0) + 1
        if self._age[replica.name] < self.starting:
            return replica
        return replace(replica, ready=True, current=current, state=make_state(boot_id=f"boot-{self.now}"))


def _only_on(snapshot: PoolSnapshot, name: str) -> tuple[str, ...]:
    """Versions that one replica has and no other usable one."""
    held = {
        each.name: {version.key for version in each.state.versions}
        for each in snapshot.replicas
        if each.usable and each.state
    }
    others = {key for other, keys in held.items() for key in keys if other != name}
    return tuple(sorted(held.get(name, set()) - others))
