"""A replica's memory as contracts/capacity.py predicts it, against what engines report. Called by the pools' verdict.

The operator never fetches a base model: its shape is known from the first engine that has loaded it (the pool's status
keeps it, and what it stands for is immutable), its weight before that only where the owner declares it.
"""

from collections.abc import Sequence

from lorafleet_contracts.admin import EngineState, MemoryState
from lorafleet_contracts.capacity import (
    BaseDoesNotFitError,
    MemoryBudget,
    ModelShape,
    ShardError,
    kv_bytes_per_token,
    mig_slice_bytes,
    plan_memory,
    shard_shape,
    usable_bytes,
    weight_bytes,
)
from lorafleet_contracts.conditions import Reason
from lorafleet_contracts.resources.pool import (
    BudgetForecast,
    BudgetStatus,
    EngineSpec,
    LoraPoolSpec,
    LoraPoolStatus,
    ShapeStatus,
)
from lorafleet_operator.core.conditions import Refusal
from lorafleet_operator.core.manifests.quantities import parse_bytes

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
ALARMING_PERCENT = 2
"""How far a prediction may be off before somebody should look."""


def predict(engine: EngineSpec, shape: ModelShape, memory: MemoryState) -> MemoryBudget | None:
    """One GPU's budget by its total and what steps need beside the weights, which only engines know.

    None where the base can't be had like that at all.
    """
    own, size = shard_shape(shape, engine.tensor_parallel), DTYPE_BYTES[engine.dtype]
    weights = weight_bytes(own, size, fp8=engine.quantization == "FP8")
    try:
        return plan_memory(memory.total, weights, memory.activations, kv_bytes_per_token(own, size))
    except BaseDoesNotFitError:
        return None


def judge_budget(spec: LoraPoolSpec | None, states: Sequence[EngineState], old: LoraPoolStatus) -> BudgetStatus | None:
    """What is true of every usable replica: the one with the least room for adapters, and what was predicted for it."""
    memories = [each.memory for each in states if each.memory is not None]
    if not memories:
        return old.budget
    least = min(memories, key=lambda each: (each.adapters, each.kv_tokens))
    told = BudgetStatus(
        total=least.total,
        weights=least.weights,
        activations=least.activations,
        adapters=least.adapters,
        kv_tokens=least.kv_tokens,
    )
    shape = known_shape(states, old)
    if spec is None or shape is None:
        return told
    try:
        predicted = predict(spec.engine, read_shape(shape), least)
    except ShardError:
        return told
    if predicted is None:
        return told
    forecast = BudgetForecast(
        weights=predicted.weights,
        adapters=predicted.adapters,
        kv_tokens=predicted.kv_tokens,
        difference_percent=_difference(predicted, least),
    )
    return told.model_copy(update={"predicted": forecast})


def known_shape(states: Sequence[EngineState], old: LoraPoolStatus) -> ShapeStatus | None:
    """The base's shape by the status, else by the first engine that tells it."""
    if old.shape is not None:
        return old.shape
    told = next((each.base.shape for each in states if each.base.shape is not None), None)
    return None if told is None else ShapeStatus(**told.model_dump())


def read_shape(shape: ShapeStatus) -> ModelShape:
    """As the sums of contracts/capacity.py take it."""
    return ModelShape(**shape.model_dump())


def news_of_difference(new: LoraPoolStatus, old: LoraPoolStatus) -> str | None:
    """The message of a new status whose budget is off, where the old one's was not."""
    if not _is_off(new) or _is_off(old) or new.budget is None or new.budget.predicted is None:
        return None
    told, predicted = new.budget, new.budget.predicted
    return (
        f"the replicas' memory is {predicted.difference_percent} % off what was predicted: weights {told.weights} "
        f"(predicted {predicted.weights}), adapters {told.adapters} ({predicted.adapters}), KV tokens {told.kv_tokens} "
        f"({predicted.kv_tokens}). Operator and engines may be of different versions"
    )


def refuse_base(spec: LoraPoolSpec, pod: str, status: LoraPoolStatus) -> Refusal | None:
    """Why the base can't fit the MIG slice that a pod (`engine.pod`, `dedicated.pod`) asks for, or None.

    `spec` is as that pod takes it. Nothing is known of other devices' sizes.
    """
    engine = spec.engine
    slices = [(name, size) for name in engine.pod.resources.limits if (size := mig_slice_bytes(name)) is not None]
    found = _weights(spec, status)
    if not slices or found is None:
        return None
    weights, source = found
    name, size = min(slices, key=lambda each: each[1])
    percent = engine.memory.gpu_utilization_percent
    usable = usable_bytes(size, percent)
    if weights < usable:
        return None
    return Refusal(
        Reason.BASE_DOES_NOT_FIT,
        f"the base's weights take {weights} bytes ({source}), and of a slice {name} of {size} bytes, which {pod} asks "
        f"for, engine.memory.gpuUtilizationPercent {percent} leaves {usable}, before any adapter or KV cache. "
        "Ask for a larger slice or a whole GPU, or choose a smaller base",
    )


def refuse_files(spec: LoraPoolSpec) -> Refusal | None:
    """Why a base that each pod fetches can't lie in its disk cache; None where it may, or nothing is declared."""
    base, cache = spec.base_model, parse_bytes(spec.engine.memory.disk_cache)
    if base.weights is None or base.source.uri.startswith("pvc:"):
        return None
    # Weights computed in float32 are mostly published in two bytes each.
    files = parse_bytes(base.weights) // (2 if spec.engine.dtype == "float32" else 1)
    if files <= cache:
        return None
    return Refusal(
        Reason.BASE_DOES_NOT_FIT,
        f"the base's files take at least {files} bytes (by baseModel.weights), and each pod fetches them into "
        f"engine.memory.diskCache, {spec.engine.memory.disk_cache} ({cache} bytes). Raise that above the base and the "
        "adapters together, or put the base on a volume (baseModel.source pvc://)",
    )


def _weights(spec: LoraPoolSpec, status: LoraPoolStatus) -> tuple[int, str] | None:
    fp8 = spec.engine.quantization == "FP8"
    if status.shape is not None:
        return weight_bytes(read_shape(status.shape), DTYPE_BYTES[spec.engine.dtype], fp8=fp8), "by its shape"
    if spec.base_model.weights is None:
        return None
    declared = parse_bytes(spec.base_model.weights)
    # Rounding halves the projections at most; embeddings and norms stay as they are.
    return (declared // 2, "at least, by baseModel.weights") if fp8 else (declared, "by baseModel.weights")


def _difference(predicted: MemoryBudget, told: MemoryState) -> int:
    pairs = (
        (predicted.weights, told.weights),
        (predicted.adapters, told.adapters),
        (predicted.kv_tokens, told.kv_tokens),
    )
    return max(-(-100 * abs(a - b) // max(a, 1)) for a, b in pairs)


def _is_off(status: LoraPoolStatus) -> bool:
    budget = status.budget
    return (
        budget is not None and budget.predicted is not None and budget.predicted.difference_percent > ALARMING_PERCENT
    )
