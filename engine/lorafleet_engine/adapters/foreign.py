"""Says of a tensor that has no place in the engine what it is, and what to do. Used by peft.py. Torch-free."""

KINDS = (
    ("lora_magnitude_vector", "a magnitude of DoRA, which is not supported: train a plain LoRA"),
    ("lora_embedding_", "LoRA of an embedding, which is not supported: train without it"),
    ("embed_tokens", "of the embedding, which is not adapted here: train without it"),
    ("lm_head", "of the output layer, which is not adapted here: train without it"),
    ("trainable_tokens", "a trained token embedding, which is not supported: train without it"),
    ("modules_to_save", "a whole module saved beside the adapter, which is not supported: train without it"),
    ("lora_E", "of AdaLoRA, which is not supported: train a plain LoRA"),
    ("ranknum", "of AdaLoRA, which is not supported: train a plain LoRA"),
    ("lora_diag", "of KaSA, which is not supported: train a plain LoRA"),
    ("lora_velora", "of VeLoRA, which is not supported: train a plain LoRA"),
    ("lora_monteclora", "of MonteCLoRA, which is not supported: train a plain LoRA"),
    ("hada_", "of LoHa, which is not supported: train a plain LoRA"),
    ("lokr_", "of LoKr, which is not supported: train a plain LoRA"),
    ("ia3_", "of IA3, which is not supported: train a plain LoRA"),
    ("prompt_embeddings", "a trained prompt, which is not supported: train a plain LoRA"),
    (".experts.", "of an expert of a mixture, which the base model does not have"),
    (".default.", "saved with the name of the adapter in it: save it with peft's save_pretrained"),
    ("_orig_mod.", "saved from a compiled model: save it from the model itself"),
    (".base_layer.", "a weight of the base, which belongs in no adapter: save it with peft's save_pretrained"),
    (".bias", "a trained bias, which is not supported: train without biases"),
)
"""Part of a tensor's name -> what it is; the first that is in the name."""


def describe(name: str) -> str:
    """Why the tensor cannot be used."""
    what = next((what for part, what in KINDS if part in name), "of no projection of the base model")
    return f"tensor {name} is {what}"
