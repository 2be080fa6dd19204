"""What one engine process is started with, read from the environment once by main.py. Holds values, decides nothing.

Every variable is named LORAFLEET_*; sizes are bytes, times seconds. Derived values (CPU quota, memory limit) come from
the container's cgroup, read here and nowhere else.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from lorafleet_contracts.admin import SourceAccess
from lorafleet_contracts.capacity import PROJECTIONS
from lorafleet_contracts.names import EnginePort
from lorafleet_engine.errors import SettingsError
from lorafleet_engine.messages import DEFAULT_LIMITS, StepLimits

GIB = 1 << 30
INTERPRETER_RESERVE_BYTES = 800 << 20
"""What the three processes take beside the loop's budget: interpreters, libraries, request bodies, fetch buffers."""
CGROUP = Path("/sys/fs/cgroup")
VERSION = re.compile(r"(?P<uid>[A-Za-z0-9][A-Za-z0-9._-]{0,127})@(?P<digest>sha256:[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class BaseSettings:
    """The base model: its names, where its files are and what it takes to get them, their digest ("" = any)."""

    name: str
    aliases: tuple[str, ...]
    uri: str
    digest: str
    access: SourceAccess


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Bounds and places of the loader's two tiers, and the root under which `pvc://` volumes are mounted."""

    host_bytes: int
    host_dir: Path
    disk_bytes: int
    disk_dir: Path
    volumes_dir: Path


@dataclass(frozen=True, slots=True)
class PortSettings:
    """Where the three ports listen, where their accepted tokens are read, and the pair they speak TLS with (None: plain
    HTTP)."""

    bind: str
    serving: int
    state: int
    admin: int
    tokens_dir: Path
    tls_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class MergeSettings:
    """The one adapter version that this engine has merged into its weights, and what people call it."""

    uri: str
    uid: str
    digest: str
    namespace: str
    name: str
    access: SourceAccess


@dataclass(frozen=True, slots=True)
class Settings:
    """One engine. `memory_bytes` None, where none are told on a CUDA device, means its utilisation percent; `merge`
    None is a shared one."""

    base: BaseSettings
    caches: CacheSettings
    ports: PortSettings
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    quantization: Literal["none", "fp8"]
    prefix_cache: Literal["off", "tenant", "shared"]
    tensor_parallel: int
    max_model_len: int
    target_modules: tuple[str, ...]
    utilization_percent: int
    memory_bytes: int | None
    cpu_threads: int
    drain_seconds: int
    log_level: str
    limits: StepLimits
    merge: MergeSettings | None = None


class _Reader:
    """Typed access to the variables; every refusal names the variable."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str, default: str | None = None) -> str:
        value = self._environ.get(f"LORAFLEET_{name}", "")
        if value:
            return value
        if default is None:
            raise SettingsError(f"LORAFLEET_{name} must be set")
        return default

    def number(self, name: str, default: int | None, low: int, high: int) -> int:
        text = self.text(name, None if default is None else str(default))
        if not text.isdecimal() or not low <= int(text) <= high:
            raise SettingsError(f"LORAFLEET_{name} must be a whole number from {low} to {high}, not {text!r}")
        return int(text)

    def names(self, name: str, default: str) -> tuple[str, ...]:
        return tuple(part for part in (piece.strip() for piece in self.text(name, default).split(",")) if part)

    def is_set(self, name: str) -> bool:
        return bool(self._environ.get(f"LORAFLEET_{name}"))


def load_settings(environ: Mapping[str, str], cgroup: Path = CGROUP) -> Settings:
    """Read the environment. Raises SettingsError with the name of the variable that is missing or wrong."""
    reader = _Reader(environ)
    device: Literal["cpu", "cuda"] = "cuda" if _choice(reader, "DEVICE", ("cpu", "cuda")) == "cuda" else "cpu"
    dtype = _choice(reader, "DTYPE", ("float32", "bfloat16"))
    caches = _load_caches(reader)
    modules = reader.names("TARGET_MODULES", ",".join(PROJECTIONS))
    if unknown := sorted(set(modules) - set(PROJECTIONS)):
        raise SettingsError(f"LORAFLEET_TARGET_MODULES holds unknown projections: {', '.join(unknown)}")
    return Settings(
        base=BaseSettings(
            reader.text("BASE_NAME"),
            reader.names("BASE_ALIASES", ""),
            reader.text("BASE_URI"),
            reader.text("BASE_DIGEST", ""),
            _access(reader, "BASE_ACCESS"),
        ),
        caches=caches,
        ports=_load_ports(reader),
        device=device,
        dtype="bfloat16" if dtype == "bfloat16" else "float32",
        quantization=_quantization(reader, device, dtype),
        prefix_cache=_prefix_cache(reader),
        tensor_parallel=reader.number("TENSOR_PARALLEL", 1, 1, 64),
        max_model_len=reader.number("MAX_MODEL_LEN", 2048, 16, 1 << 20),
        target_modules=modules,
        utilization_percent=reader.number("GPU_UTILIZATION_PERCENT", 92, 10, 98),
        memory_bytes=_memory_bytes(reader, device, caches.host_bytes, cgroup),
        cpu_threads=reader.number("CPU_THREADS", cpu_quota(cgroup), 1, 1024),
        drain_seconds=reader.number("DRAIN_SECONDS", 600, 0, 86_400),
        log_level=_choice(reader, "LOG_LEVEL", ("INFO", "DEBUG", "WARNING", "ERROR")),
        limits=_limits(reader, device),
        merge=_load_merge(reader),
    )


def cpu_quota(cgroup: Path) -> int:
    """Whole CPUs that this container may use, at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if not period:  # cgroup v1; -1 means no quota there
        quota, period = _read(cgroup / "cpu/cpu.cfs_quota_us"), _read(cgroup / "cpu/cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal():
        cores = min(cores, int(quota) // int(period))
    return max(cores, 1)


def memory_limit(cgroup: Path) -> int:
    """Bytes that this container may use: the cgroup's limit, else the machine's memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _read(cgroup / name)
        if text.isdecimal():
            return min(int(text), physical)
    return physical


def _prefix_cache(reader: _Reader) -> Literal["off", "tenant", "shared"]:
    """Who may find what was computed before; a tenant sees nothing of another's unless told so."""
    chosen = _choice(reader, "PREFIX_CACHE", ("tenant", "shared", "off"))
    return "shared" if chosen == "shared" else "off" if chosen == "off" else "tenant"


def _quantization(reader: _Reader, device: str, dtype: str) -> Literal["none", "fp8"]:
    """Refuse what would not be faster, or not exact, with the reason."""
    name = "LORAFLEET_QUANTIZATION"
    value = reader.text("QUANTIZATION", "none").lower()
    if value == "int4":
        raise SettingsError(f"{name} int4 is refused: there are no kernels for 4-bit weights yet; take none or fp8")
    if value not in ("none", "fp8"):
        raise SettingsError(f"{name} must be one of none, fp8, not {value!r}")
    if value == "none":
        return "none"
    if (device, dtype) != ("cuda", "bfloat16"):
        raise SettingsError(f"{name} fp8 needs LORAFLEET_DEVICE cuda and LORAFLEET_DTYPE bfloat16: a CPU gains nothing")
    return "fp8"


def _load_caches(reader: _Reader) -> CacheSettings:
    return CacheSettings(
        host_bytes=reader.number("HOST_CACHE_BYTES", GIB, 1 << 20, 1 << 44),
        host_dir=Path(reader.text("HOST_CACHE_DIR", "/dev/shm/lorafleet")),
        disk_bytes=reader.number("DISK_CACHE_BYTES", 10 * GIB, 1 << 20, 1 << 46),
        disk_dir=Path(reader.text("DISK_CACHE_DIR", "/var/cache/lorafleet")),
        volumes_dir=Path(reader.text("VOLUMES_DIR", "/volumes")),
    )


def _limits(reader: _Reader, device: Literal["cpu", "cuda"]) -> StepLimits:
    """What suits the device, but for the tokens and the distinct adapters of a step where they are told."""
    usual = DEFAULT_LIMITS[device]
    return replace(
        usual,
        tokens=reader.number("STEP_TOKENS", usual.tokens, usual.sequences + 1, 1 << 20),
        distinct_adapters=reader.number("STEP_ADAPTERS", usual.distinct_adapters, 1, 1 << 16),
    )


def _load_merge(reader: _Reader) -> MergeSettings | None:
    if not reader.is_set("MERGE_ADAPTER"):
        return None
    key = reader.text("MERGE_VERSION")
    match = VERSION.fullmatch(key)
    if match is None:
        raise SettingsError(f"LORAFLEET_MERGE_VERSION must be UID@sha256:DIGEST, not {key!r}")
    namespace, slash, name = reader.text("MERGE_DISPLAY", f"merged/{match['uid']}").partition("/")
    if not (namespace and slash and name):
        raise SettingsError("LORAFLEET_MERGE_DISPLAY must be NAMESPACE/NAME")
    uri, access = reader.text("MERGE_ADAPTER"), _access(reader, "MERGE_ACCESS")
    return MergeSettings(uri, match["uid"], match["digest"], namespace, name, access)


def _access(reader: _Reader, name: str) -> SourceAccess:
    try:
        return SourceAccess.model_validate_json(reader.text(name, "{}"))
    except ValidationError as error:
        raise SettingsError(f"LORAFLEET_{name} must be a JSON object of SourceAccess") from error


def _load_ports(reader: _Reader) -> PortSettings:
    return PortSettings(
        bind=reader.text("BIND", "0.0.0.0"),
        serving=reader.number("SERVING_PORT", EnginePort.SERVING.value, 1, 65_535),
        state=reader.number("STATE_PORT", EnginePort.STATE.value, 1, 65_535),
        admin=reader.number("ADMIN_PORT", EnginePort.ADMIN.value, 1, 65_535),
        tokens_dir=Path(reader.text("TOKENS_DIR", "/etc/lorafleet/tokens")),
        tls_dir=Path(reader.text("TLS_DIR")) if reader.is_set("TLS_DIR") else None,
    )


def _choice(reader: _Reader, name: str, allowed: tuple[str, ...]) -> str:
    value = reader.text(name, allowed[0])
    if value not in allowed:
        raise SettingsError(f"LORAFLEET_{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def _memory_bytes(reader: _Reader, device: str, host_bytes: int, cgroup: Path) -> int | None:
    if reader.is_set("MEMORY_BYTES"):
        return reader.number("MEMORY_BYTES", None, 1 << 20, 1 << 46)
    if device == "cuda":
        return None
    budget = memory_limit(cgroup) - host_bytes - INTERPRETER_RESERVE_BYTES
    if budget <= 0:
        raise SettingsError(
            f"the memory limit of {memory_limit(cgroup)} bytes leaves nothing after the host cache of {host_bytes}"
            f" bytes (LORAFLEET_HOST_CACHE_BYTES) and {INTERPRETER_RESERVE_BYTES} bytes for the processes themselves"
        )
    return budget


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
