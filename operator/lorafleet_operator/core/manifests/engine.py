"""The StatefulSet of a pool's engines. Its environment is what the engine's settings read; golden files pin it."""

from collections.abc import Mapping
from typing import Any

from lorafleet_contracts.admin import LIVE_PATH, READY_PATH, SourceAccess
from lorafleet_contracts.names import LABEL_TLS, SERVING_TLS_PORT, EnginePort, tls_secret
from lorafleet_contracts.resources.pool import EngineSpec, LoraPoolSpec
from lorafleet_operator.core.manifests.identity import labels, object_meta, selector_labels, set_name, tokens_name
from lorafleet_operator.core.manifests.quantities import parse_bytes
from lorafleet_operator.core.sets import EngineSet, Merge
from lorafleet_operator.core.snapshot import EngineDefaults, Meta
from lorafleet_operator.core.sources import base_access, source_of

USER_ID = 65532
CACHE_DIR = "/var/cache/lorafleet"
TOKENS_DIR = "/etc/lorafleet/tokens"
TLS_DIR = "/etc/lorafleet/tls"
VOLUMES_DIR = "/volumes"
DRAIN_SECONDS = 600
GRACE_SECONDS = DRAIN_SECONDS + 30
GPU_RESOURCES = "nvidia.com/"
WHOLE_GPUS = "nvidia.com/gpu"
"""What a tensor-parallel engine asks for: slices of GPUs (MIG) cannot talk to each other."""
PEER_BYTES = 64 << 20
"""Shared memory through which each of several processes may talk to the others, beside the host cache."""


def build_stateful_set(pool: Meta, spec: LoraPoolSpec, defaults: EngineDefaults, engines: EngineSet) -> dict[str, Any]:
    """Replicas with stable names; all start at once, a changed template comes to those from the partition on."""
    own = engines.kind in ("Private", "Merged")
    name, spec = set_name(pool.name, engines.name), dedicated_spec(spec) if own else spec
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": object_meta(pool, name, engines.name),
        "spec": {
            "serviceName": name,
            "replicas": engines.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": engines.partition}},
            "selector": {"matchLabels": selector_labels(pool.name, engines.name)},
            "template": {
                "metadata": {"labels": labels(pool.name, engines.name) | {LABEL_TLS: "true"}},
                "spec": _pod(pool, spec, defaults, engines),
            },
        },
    }


def dedicated_spec(spec: LoraPoolSpec) -> LoraPoolSpec:
    """As tenants' own replicas take it: what `dedicated.pod` says is in the place of the same in `engine.pod`."""
    own = {name: value for name, value in spec.dedicated.pod if value is not None}
    pod = spec.engine.pod.model_copy(update=own)
    return spec.model_copy(update={"engine": spec.engine.model_copy(update={"pod": pod})})


def resolve_device(engine: EngineSpec) -> str:
    """`cpu` or `cuda`: Auto takes the GPU that the pod asks for, if any."""
    if engine.device != "Auto":
        return engine.device.lower()
    limits = engine.pod.resources.limits
    return "cuda" if any(name.startswith(GPU_RESOURCES) for name in limits) else "cpu"


def refuse_gpus(engine: EngineSpec, pod: str) -> str | None:
    """Why the GPUs that a pod (`engine.pod`) asks for do not suit a tensor-parallel engine, or None."""
    limits = engine.pod.resources.limits
    asked = {name: count for name, count in limits.items() if name.startswith(GPU_RESOURCES)}
    if engine.tensor_parallel == 1 or not asked or asked == {WHOLE_GPUS: str(engine.tensor_parallel)}:
        return None
    found = ", ".join(f"{name}: {count}" for name, count in sorted(asked.items()))
    return (
        f"engine.tensorParallel {engine.tensor_parallel} needs {WHOLE_GPUS}: {engine.tensor_parallel}, and "
        f"{pod}.resources.limits asks for {found}. Ask for that many, or leave it out"
    )


def _pod(pool: Meta, spec: LoraPoolSpec, defaults: EngineDefaults, engines: EngineSet) -> dict[str, Any]:
    wanted = spec.engine.pod
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector_labels(pool.name, engines.name)},
            }
        ],
        "containers": [_container(spec, defaults, engines)],
        "volumes": _volumes(pool, spec),
    }
    optional = {
        "imagePullSecrets": [each.wire() for each in wanted.image_pull_secrets],
        "nodeSelector": dict(wanted.node_selector),
        "tolerations": wanted.tolerations,
        "affinity": wanted.affinity,
        "runtimeClassName": wanted.runtime_class_name,
    }
    return pod | {key: value for key, value in optional.items() if value}


def _container(spec: LoraPoolSpec, defaults: EngineDefaults, engines: EngineSet) -> dict[str, Any]:
    return {
        "name": "engine",
        "image": spec.engine.pod.image or defaults.image,
        "imagePullPolicy": defaults.pull_policy,
        "env": _environment(spec, engines.merged),
        "ports": [{"name": _port_name(port), "containerPort": int(port), "protocol": "TCP"} for port in EnginePort],
        "resources": _resources(spec.engine),
        # Generous where a busy machine would be punished by a restart; quick where only routing is at stake.
        "startupProbe": _probe(LIVE_PATH, period=2, timeout=4, failures=150),
        "livenessProbe": _probe(LIVE_PATH, period=10, timeout=10, failures=6),
        "readinessProbe": _probe(READY_PATH, period=2, timeout=4, failures=2),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "lorafleet-cache", "mountPath": CACHE_DIR},
            {"name": "lorafleet-shm", "mountPath": "/dev/shm"},
            {"name": "lorafleet-tmp", "mountPath": "/tmp"},
            {"name": "lorafleet-tokens", "mountPath": TOKENS_DIR, "readOnly": True},
            {"name": "lorafleet-tls", "mountPath": TLS_DIR, "readOnly": True},
            *(
                {"name": volume["name"], "mountPath": f"{VOLUMES_DIR}/{volume['name']}", "readOnly": True}
                for volume in spec.engine.pod.volumes
            ),
        ],
    }


def _resources(engine: EngineSpec) -> dict[str, Any]:
    """The pod's own; a tensor-parallel engine on GPUs gets as many as it needs."""
    wanted: dict[str, Any] = {key: value for key, value in engine.pod.resources.wire().items() if value}
    if engine.tensor_parallel == 1 or resolve_device(engine) == "cpu":
        return wanted
    return wanted | {"limits": {WHOLE_GPUS: str(engine.tensor_parallel)} | wanted.get("limits", {})}


def _environment(spec: LoraPoolSpec, merged: Merge | None) -> list[dict[str, str]]:
    base, engine = spec.base_model, spec.engine
    ours: Mapping[str, str] = {
        "LORAFLEET_BASE_NAME": base.name,
        "LORAFLEET_BASE_ALIASES": ",".join(base.aliases),
        "LORAFLEET_BASE_URI": base.source.uri,
        "LORAFLEET_BASE_DIGEST": base.digest or "",
        "LORAFLEET_BASE_ACCESS": _told(base_access(spec)),
        "LORAFLEET_DEVICE": resolve_device(engine),
        "LORAFLEET_DTYPE": engine.dtype,
        "LORAFLEET_QUANTIZATION": "" if engine.quantization == "None" else engine.quantization.lower(),
        "LORAFLEET_TENSOR_PARALLEL": "" if engine.tensor_parallel == 1 else str(engine.tensor_parallel),
        "LORAFLEET_MAX_MODEL_LEN": str(engine.max_model_len),
        "LORAFLEET_PREFIX_CACHE": "" if engine.prefix_cache == "PerTenant" else engine.prefix_cache.lower(),
        "LORAFLEET_GPU_UTILIZATION_PERCENT": str(engine.memory.gpu_utilization_percent),
        "LORAFLEET_HOST_CACHE_BYTES": str(parse_bytes(engine.memory.host_cache)),
        "LORAFLEET_DISK_CACHE_BYTES": str(parse_bytes(engine.memory.disk_cache)),
        "LORAFLEET_DISK_CACHE_DIR": CACHE_DIR,
        "LORAFLEET_VOLUMES_DIR": VOLUMES_DIR,
        "LORAFLEET_TOKENS_DIR": TOKENS_DIR,
        "LORAFLEET_TLS_DIR": TLS_DIR,
        "LORAFLEET_DRAIN_SECONDS": str(DRAIN_SECONDS),
        "LORAFLEET_MERGE_ADAPTER": merged.uri if merged else "",
        "LORAFLEET_MERGE_ACCESS": _told(source_of(merged.uri, merged.namespace, spec).access) if merged else "",
        "LORAFLEET_MERGE_VERSION": merged.version if merged else "",
        "LORAFLEET_MERGE_DISPLAY": f"{merged.namespace}/{merged.name}" if merged else "",
    }
    theirs = {each.name: each.value for each in engine.pod.env}
    return [{"name": name, "value": value} for name, value in {**ours, **theirs}.items() if value or name in theirs]


def _told(access: SourceAccess) -> str:
    """What differs from the defaults, as JSON; nothing where nothing does."""
    return access.model_dump_json(by_alias=True, exclude_defaults=True) if access != SourceAccess() else ""


def _volumes(pool: Meta, spec: LoraPoolSpec) -> list[dict[str, Any]]:
    memory, size = spec.engine.memory, spec.engine.tensor_parallel
    shm = memory.host_cache if size == 1 else str(parse_bytes(memory.host_cache) + size * PEER_BYTES)
    # Downloads lie beside the cache until they are verified: without room for both, the kubelet would evict the pod.
    disk = str(2 * parse_bytes(memory.disk_cache))
    return [
        {"name": "lorafleet-cache", "emptyDir": {"sizeLimit": disk}},
        {"name": "lorafleet-shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}},
        {"name": "lorafleet-tmp", "emptyDir": {}},
        {"name": "lorafleet-tokens", "secret": {"secretName": tokens_name(pool.name)}},
        {"name": "lorafleet-tls", "secret": {"secretName": tls_secret(pool.name)}},
        *spec.engine.pod.volumes,
    ]


def _port_name(port: EnginePort) -> str:
    """The name of the serving port is what gateways see of a pod's TLS."""
    return SERVING_TLS_PORT if port is EnginePort.SERVING else port.name.lower()


def _probe(path: str, period: int, timeout: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": _port_name(EnginePort.STATE), "scheme": "HTTPS"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
