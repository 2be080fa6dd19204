"""One simulated run: arrivals against simulated engines under the real `plan_pool`. Called by `lorafleet plan`.

The operator's rhythm is the real one (handlers/tasks.py): woken by changes, by what a plan asked for, and by time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lorafleet_contracts.admin import Tier
from lorafleet_contracts.resources.tenant import TenantStatus
from lorafleet_operator.core.actions import Apply, Delete, Inspect, Load, Plan, StatusWrite, Unload
from lorafleet_operator.core.capability import Capacity
from lorafleet_operator.core.planning import plan_pool
from lorafleet_operator.core.snapshot import Adapter, EngineDefaults, Pool, PoolSnapshot, PoolTokens, Tenant
from lorafleet_operator.shell.load import LoadMeter
from lorafleet_operator.simulation.calls import Calls, Files, resident
from lorafleet_operator.simulation.clock import Clock
from lorafleet_operator.simulation.cluster import Cluster
from lorafleet_operator.simulation.engines import EngineProfile
from lorafleet_operator.simulation.measures import Meter, Outcome, Stage
from lorafleet_operator.simulation.routing import Router
from lorafleet_operator.simulation.traffic import Arrivals, Caller

EPOCH = 1_800_000_000.0
DEBOUNCE_SECONDS = 0.2
WARM_DEBOUNCE_SECONDS = 5.0
"""Before traffic begins fewer plans do: nobody waits for them."""
RESYNC_SECONDS = 20.0
"""The operator looks every 10 s while there is load; half as often costs a run half and moves nothing by a minute."""
WARM_UP_SECONDS = 3600.0
"""The longest that a run waits for everything to be in place before traffic begins."""
_TOKENS = PoolTokens(dict.fromkeys(("admin", "serving", "state"), ("simulated",)))


@dataclass(frozen=True, slots=True)
class Loss:
    """A replica that ends without a word at `at` seconds: the one with this place among those that run."""

    at: float
    place: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """What is simulated. `files` maps adapter uids to what their files are; `seconds` is how long traffic lasts, and
    `replicas` how many there are when it begins, if that is more than the pool's least (it is in operation already).
    The operator looks every `look_seconds` where nothing happens. `held` are adapters (uids) that replicas have from
    the start, where a run goes on from what a cluster has; a `capacity` is taken for what the operator has measured,
    which else it finds out in the run."""

    pool: Pool
    adapters: tuple[Adapter, ...]
    tenants: tuple[Tenant, ...]
    namespaces: Mapping[str, Mapping[str, str]]
    files: Mapping[str, Files]
    profile: EngineProfile
    callers: Sequence[Caller]
    arrivals: Arrivals
    seconds: float
    losses: Sequence[Loss] = field(default=())
    sample_seconds: float = 60.0
    replicas: int = 0
    look_seconds: float = RESYNC_SECONDS
    held: Mapping[str, Sequence[str]] = field(default_factory=dict)
    capacity: Capacity | None = None


def simulate(case: Case) -> Outcome:
    """Start the pool from nothing, then send the arrivals; the same case always gives the same outcome."""
    return _Run(case).run()


class _Run:
    def __init__(self, case: Case) -> None:
        self._case = case
        self._clock = Clock(EPOCH)
        self._plan_at = EPOCH
        self._debounce = WARM_DEBOUNCE_SECONDS
        objects = (_raised(case.pool, case.replicas), case.adapters, case.tenants)
        held = {name: [resident(uid, case.files[uid]) for uid in uids] for name, uids in case.held.items()}
        self._cluster = Cluster(self._clock, case.profile, objects, self._changed, held)
        self._calls = Calls(self._clock, case.files, self._cluster.engine, self._changed)
        self._router = Router(self._cluster)
        self._load = LoadMeter(lambda: self._clock.now)
        self._meter = Meter(case.callers, case.sample_seconds)
        self._next = 0
        self._start = EPOCH

    def run(self) -> Outcome:
        self._warm_up()
        self._cluster.pool = replace(self._cluster.pool, spec=self._case.pool.spec)
        self._start = self._clock.now
        for loss in self._case.losses:
            self._clock.after(loss.at, lambda loss=loss: self._lose(loss))  # type: ignore[misc]
        self._meter.begin(self._cluster, self._calls)
        sample = self._start + self._case.sample_seconds
        end = self._start + self._case.seconds
        while self._clock.now < end:
            moment = min(self._plan_at, self._clock.next_event, sample, end)
            self._serve(moment)
            self._advance(moment)
            if moment >= sample or moment >= end:
                self._meter.sample(self._clock.now - self._start, self._cluster, self._calls)
                sample += self._case.sample_seconds
        return self._meter.outcome(self._cluster)

    def _warm_up(self) -> None:
        """Let everything come to rest: no call runs and the last plan wanted nothing."""
        while self._clock.now < EPOCH + WARM_UP_SECONDS:
            quiet = self._clock.next_event == float("inf") and self._plan_at > self._clock.now + self._debounce
            if quiet:
                break
            self._advance(min(self._plan_at, self._clock.next_event))
        self._debounce = DEBOUNCE_SECONDS

    def _advance(self, moment: float) -> None:
        self._clock.run_until(moment)
        if moment >= self._plan_at:
            self._decide()

    def _changed(self) -> None:
        self._router.forget()
        self._plan_at = min(self._plan_at, self._clock.now + self._debounce)

    def _lose(self, loss: Loss) -> None:
        running = [pod.name for pod in self._cluster.pods() if pod.engine is not None]
        if running:
            self._cluster.lose(running[min(loss.place, len(running) - 1)])

    def _decide(self) -> None:
        now = self._clock.now
        snapshot = self._load.measure(self._snapshot(), now)
        plan = plan_pool(replace(snapshot, capacity=self._case.capacity or snapshot.capacity), now)
        longest = self._case.look_seconds
        wait = longest if plan.again_in is None else min(plan.again_in, longest)
        self._plan_at = now + max(wait, self._debounce)
        self._carry_out(plan)

    def _carry_out(self, plan: Plan) -> None:
        for action in plan.actions:
            match action:
                case Apply():
                    self._cluster.apply(action)
                case Delete():
                    self._cluster.delete(action)
                case Inspect():
                    self._calls.inspect(action)
                case Load():
                    self._calls.load(action)
                case Unload():
                    self._calls.unload(action)
        self._calls.note_surplus(plan.surplus)
        self._calls.note_leaving(plan.leaving)
        if plan.moves:
            self._calls.note_moves()
        self._load.note(plan)
        for write in plan.statuses:
            self._note_stage(write)
            self._cluster.write(write)
        if plan.statuses:
            self._changed()

    def _note_stage(self, write: StatusWrite) -> None:
        if not isinstance(write.status, TenantStatus) or write.status.promotion is None:
            return
        old, new = self._cluster.tenants[write.uid].status.promotion, write.status.promotion
        if (old.stage if old else "Shared") != new.stage:
            at = self._clock.now - self._start
            name = f"{write.namespace}/{write.name}"
            self._meter.staged(Stage(at, name, new.stage, new.reason, new.set, new.message))

    def _snapshot(self) -> PoolSnapshot:
        cluster = self._cluster
        replicas = cluster.replicas()
        self._calls.forget({(each.name, each.state.boot_id) for each in replicas if each.state})
        return PoolSnapshot(
            pool=cluster.pool,
            adapters=tuple(cluster.adapters.values()),
            tenants=tuple(cluster.tenants.values()),
            replicas=replicas,
            namespaces=self._case.namespaces,
            defaults=EngineDefaults("simulated"),
            tokens=_TOKENS,
            workloads=cluster.workloads(),
            applied=dict(cluster.applied),
            memory=replace(self._calls.memory(), popularity_told=self._load.told_at(self._clock.now)),
        )

    def _serve(self, until: float) -> None:
        """Route every arrival before `until`."""
        arrivals, start = self._case.arrivals, self._start
        times, callers = arrivals.times, arrivals.callers
        count = len(times)
        while self._next < count and start + times[self._next] < until:
            row = self._next
            self._next += 1
            caller = self._case.callers[callers[row]]
            now = start + float(times[row])
            pick = self._router.pick(caller, now)
            if pick is None:
                self._meter.unserved(int(callers[row]))
                continue
            cold = pick.tier != Tier.GPU
            extra = self._case.profile.load_seconds(self._case.files[caller.adapter].bytes, pick.tier) if cold else 0.0
            tokens = (int(arrivals.prompt_tokens[row]), int(arrivals.completion_tokens[row]))
            pick.engine.serve((caller.tenant, pick.version), tokens, now, extra)
            self._meter.served(int(callers[row]), cold)
            if cold:
                self._router.forget()  # it has come to the GPU, and others may have made way


def _raised(pool: Pool, replicas: int) -> Pool:
    """The pool with at least so many replicas."""
    assert pool.spec is not None
    wanted = pool.spec.replicas
    raised = wanted.model_copy(update={"min": max(wanted.min, replicas)})
    return replace(pool, spec=pool.spec.model_copy(update={"replicas": raised}))
