"""API objects to compact frozen records. Called by the reflectors and after writes; pure, and refuses nothing.

An object that our models can't read (a newer CRD, say) becomes a record without a spec, which gets a verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.names import (
    EXIT_BASE_DOES_NOT_FIT,
    LABEL_POOL,
    LABEL_SET,
    LABEL_TLS,
    LABEL_ZONE,
    SHARED_SET,
    engine_server_name,
)
from lorafleet_contracts.resources.adapter import LoraAdapterSpec, LoraAdapterStatus
from lorafleet_contracts.resources.pool import LoraPoolSpec, LoraPoolStatus
from lorafleet_contracts.resources.tenant import TenantSpec, TenantStatus
from lorafleet_operator.core.snapshot import Adapter, Meta, Pool, Tenant

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Object = dict[str, Any]
PoolKey = tuple[str, str]
"""(namespace, name) of a LoraPool."""

CRASH_LOOP = "CrashLoopBackOff"
CRASHES = 3
"""From so many restarts on, a container that is not ready counts as crashing, whatever it does at the moment."""
_SHOWN_ERRORS = 3


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """A value and the resource version (comparable) of the object that it was read from."""

    value: T
    revision: int


@dataclass(frozen=True, slots=True)
class PodRecord:
    """An engine pod. `ip` is empty before it has one; `waiting` and `message` say why it does not run. `server_name` is
    the name that its certificate must have; empty: it speaks plain HTTP."""

    name: str
    uid: str
    pool: PoolKey
    ip: str
    ready: bool
    deleting: bool
    template: str
    waiting: str
    message: str
    set: str = SHARED_SET
    node: str = ""
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node. `zone` is empty where it has none; a cordoned one takes no new pods and is likely to be drained."""

    zone: str
    cordoned: bool


@dataclass(frozen=True, slots=True)
class SetRecord:
    """A StatefulSet of engines. `template` is the newest one's hash, `settled` whether all replicas run it.

    The rest is core's Workload.

    `owner` is the uid of the pool that it belongs to.
    """

    name: str
    set: str
    owner: str
    pool: PoolKey
    generation: int
    replicas: int
    template: str
    settled: bool
    observed: bool
    rolled_out: bool
    partition: int


def read_pool(found: Object) -> Seen[Pool]:
    """Project a LoraPool."""
    spec, invalid = _read(LoraPoolSpec, found.get("spec"))
    status, _ = _read(LoraPoolStatus, found.get("status") or {})
    return Seen(Pool(read_meta(found), spec, status or LoraPoolStatus(), invalid), _revision(found))


def read_adapter(found: Object) -> Seen[Adapter]:
    """Project a LoraAdapter."""
    meta = read_meta(found)
    spec, invalid = _read(LoraAdapterSpec, found.get("spec"))
    status, _ = _read(LoraAdapterStatus, found.get("status") or {})
    pool = _pool_key(found, meta.namespace)
    return Seen(Adapter(meta, pool, spec, status or LoraAdapterStatus(), invalid), _revision(found))


def read_tenant(found: Object) -> Seen[Tenant]:
    """Project a Tenant."""
    meta = read_meta(found)
    spec, invalid = _read(TenantSpec, found.get("spec"))
    status, _ = _read(TenantStatus, found.get("status") or {})
    pool = _pool_key(found, meta.namespace)
    return Seen(Tenant(meta, pool, spec, status or TenantStatus(), invalid), _revision(found))


def read_namespace(found: Object) -> dict[str, str]:
    """A Namespace's labels."""
    return dict(found["metadata"].get("labels") or {})


def read_pod(found: Object) -> PodRecord:
    """Project an engine pod."""
    meta, status = found["metadata"], found.get("status") or {}
    labels = meta.get("labels") or {}
    waiting, message = _why_waiting(status)
    return PodRecord(
        name=meta["name"],
        uid=meta["uid"],
        pool=(meta["namespace"], labels[LABEL_POOL]),
        ip=status.get("podIP", ""),
        ready=_condition(status, "Ready").get("status") == "True",
        deleting="deletionTimestamp" in meta,
        template=labels.get("controller-revision-hash", ""),
        waiting=waiting,
        message=message,
        set=labels.get(LABEL_SET, SHARED_SET),
        node=(found.get("spec") or {}).get("nodeName", ""),
        server_name=read_server_name(found),
    )


def read_server_name(pod: Mapping[str, Any]) -> str:
    """The name that an engine pod's certificate must have; empty: it speaks plain HTTP."""
    meta = pod["metadata"]
    if meta["labels"].get(LABEL_TLS) != "true":
        return ""
    return engine_server_name(meta["namespace"], meta["labels"][LABEL_POOL])


def read_node(found: Object) -> NodeRecord:
    """Project a Node."""
    labels = found["metadata"].get("labels") or {}
    return NodeRecord(labels.get(LABEL_ZONE, ""), bool((found.get("spec") or {}).get("unschedulable")))


def read_set(found: Object) -> SetRecord:
    """Project a StatefulSet of engines."""
    meta, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    replicas = int(spec.get("replicas", 1))
    rolling = (spec.get("updateStrategy") or {}).get("rollingUpdate") or {}
    observed = status.get("observedGeneration") == meta.get("generation")
    updated = status.get("updateRevision", "") == status.get("currentRevision", "")
    owners = [each["uid"] for each in meta.get("ownerReferences") or [] if each.get("controller")]
    return SetRecord(
        name=meta["name"],
        set=meta["labels"].get(LABEL_SET, SHARED_SET),
        owner=owners[0] if owners else "",
        pool=(meta["namespace"], meta["labels"][LABEL_POOL]),
        generation=int(meta.get("generation", 0)),
        replicas=replicas,
        template=status.get("updateRevision", "") if observed else "",
        settled=observed and updated and status.get("replicas", 0) == replicas,
        observed=observed,
        rolled_out=updated,
        partition=int(rolling.get("partition", 0)),
    )


def read_meta(found: Object) -> Meta:
    """Project the metadata of one of the users' objects."""
    meta = found["metadata"]
    return Meta(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=int(meta.get("generation", 0)),
        created=meta.get("creationTimestamp", ""),
        labels=dict(meta.get("labels") or {}),
        deleting="deletionTimestamp" in meta,
    )


def _read(model: type[M], value: Any) -> tuple[M | None, str]:
    try:
        return model.model_validate(value), ""
    except ValidationError as error:
        shown = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()]
        return None, f"this operator cannot read the object: {'; '.join(shown[:_SHOWN_ERRORS])}"


def _pool_key(found: Object, namespace: str) -> PoolKey:
    ref = (found.get("spec") or {}).get("poolRef") or {}
    return ref.get("namespace") or namespace, ref.get("name", "")


def _revision(found: Object) -> int:
    version = str(found["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdecimal() else 0


def _condition(status: Object, kind: str) -> Object:
    conditions: list[Object] = status.get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def _why_waiting(status: Object) -> tuple[str, str]:
    """The container's reason for not running with the words that explain it best, else the scheduler's."""
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated") or {}
        words = str(ended.get("message") or "").strip()
        if ended.get("exitCode") == EXIT_BASE_DOES_NOT_FIT and not container.get("ready"):
            return Reason.BASE_DOES_NOT_FIT.value, words
        if waiting := state.get("waiting"):
            reason, told = str(waiting.get("reason", "")), str(waiting.get("message", ""))
            return reason, (words or told) if reason == CRASH_LOOP else told
        failing = ended.get("exitCode") and container.get("restartCount", 0) >= CRASHES
        if failing and not container.get("ready"):
            return CRASH_LOOP, words  # at this moment between two crashes
        if "terminated" in state:
            return "Terminated", words or str(ended.get("reason", ""))
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason", "")), str(scheduled.get("message", ""))
    return "", ""
