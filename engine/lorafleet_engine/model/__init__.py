"""The base model: its config, its weights, and the decoder that reads like the paper. Used by runner/ and bench/."""
