"""Every option of peft's LoraConfig: used, without effect on an answer, or refused with the reason and what to do.

Used by config.py. An option that is in none of these tables and is switched on is refused, so that one which a newer
peft brings is never silently ignored; tests/engine/adapters/test_options.py compares them with the installed peft.
"""

from typing import Any

USED = frozenset(
    {
        "alpha_pattern",
        "base_model_name_or_path",
        "bias",
        "exclude_modules",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "task_type",
        "use_rslora",
    }
)
"""What config.py reads and decides on."""

NO_EFFECT = {
    "auto_mapping": "names the class of the model that was trained",
    "corda_config": "data of an initialisation; init_lora_weights decides",
    "ensure_weight_tying": "acts on modules_to_save and on embeddings, which are refused",
    "eva_config": "data of an initialisation; init_lora_weights decides",
    "fan_in_fan_out": "acts on transposed layers, which no base here has; peft ignores it on others",
    "inference_mode": "says whether the adapter is being trained",
    "loftq_config": "data of an initialisation; init_lora_weights decides",
    "lora_dropout": "acts in training only",
    "lora_ga_config": "data of an initialisation; init_lora_weights decides",
    "megatron_core": "names a package; megatron_config decides",
    "peft_version": "says who wrote the file",
    "qalora_group_size": "acts with use_qalora only",
    "revision": "names a revision of the base; shapes, names and digests are compared",
    "runtime_config": "says how to train; peft never saves it",
    # written by other trainers than peft
    "lora_dtype": "the type of the weights in training; the tensors say their own",
    "lorap_emb_lr": "a learning rate",
    "lorap_lr_ratio": "a learning rate",
    "merge_weights": "how old trainers evaluated",
}
"""Options that change no answer, and why."""

REFUSED = {
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens) is not supported: train a plain LoRA",
    "arrow_config": "Arrow routing (arrow_config) is not supported: serve the routed adapters themselves",
    "kasa_config": "KaSA (kasa_config) changes the base weights: train a plain LoRA",
    "layer_replication": "layer_replication makes another model of the base: serve that model as a base of its own",
    "lora_bias": "biases of LoRA layers (lora_bias) are not supported: train without them",
    "megatron_config": "layers of Megatron (megatron_config) are not read: export the adapter for transformers",
    "modules_to_save": "whole modules saved beside the adapter (modules_to_save) are not supported: train without "
    "them, or merge the adapter into a base of its own",
    "monteclora_config": "MonteCLoRA (monteclora_config) is not supported: train a plain LoRA",
    "target_parameters": "adapted bare parameters (target_parameters) are not supported: adapt modules",
    "trainable_token_indices": "trained token embeddings (trainable_token_indices) are not supported: train without "
    "them, or merge the adapter into a base of its own",
    "use_bdlora": "block-diagonal LoRA (use_bdlora) is not supported: train a plain LoRA",
    "use_dora": "DoRA (use_dora) is not supported: train a plain LoRA, or convert it with peft's convert_to_lora",
    "use_qalora": "QALoRA (use_qalora) is not supported: train a plain LoRA",
    "velora_config": "VeLoRA (velora_config) is not supported: train a plain LoRA",
}
"""Options that are refused when they are switched on."""

PLAIN_INITS = frozenset({"true", "false", "none", "gaussian", "eva", "orthogonal", "mica"})
"""Initialisations that leave the base weights alone: whatever was trained is in A and B."""

MERGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of those that change the base weights, so that A and B alone do not say what was trained."""

TASK_TYPES = (None, "CAUSAL_LM")


def refuse_options(raw: dict[str, Any]) -> list[str]:
    """Every reason why an adapter_config.json asks for something that would be computed wrongly here."""
    reasons = [] if raw.get("peft_type") == "LORA" else [f"peft_type {raw.get('peft_type')!r} is not LORA"]
    if raw.get("task_type") not in TASK_TYPES:
        reasons.append(f"task_type {raw['task_type']!r} is not CAUSAL_LM: the engine has no head for it")
    if raw.get("bias", "none") != "none":
        reasons.append(f"trained biases (bias={raw['bias']!r}) are not supported: train with bias='none'")
    reasons += _refuse_init(raw.get("init_lora_weights", True))
    for name in sorted(raw):
        if name in REFUSED and _on(name, raw[name]):
            reasons.append(REFUSED[name])
        elif name not in USED and name not in NO_EFFECT and name not in REFUSED and _on(name, raw[name]):
            reasons.append(
                f"{name} is an option that this engine does not know, so it may change the answers: remove it from "
                "adapter_config.json if it does not"
            )
    return reasons


def _refuse_init(value: object) -> list[str]:
    init = str(value).lower()
    if init in PLAIN_INITS:
        return []
    if init.startswith(MERGING_INITS):
        return [
            f"init_lora_weights={init!r} changes the base weights: convert the adapter to a plain LoRA with peft's "
            "save_pretrained(path_initial_model_for_weight_conversion=...)"
        ]
    return [f"init_lora_weights={init!r} is an initialisation that this engine does not know"]


def _on(name: str, value: object) -> bool:
    """Whether an option is switched on. No invocation tokens are still activated LoRA."""
    return value is not None if name == "alora_invocation_tokens" else bool(value)
