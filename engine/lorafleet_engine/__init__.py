"""The engine: serves one base model with many LoRA adapters. Never imports the operator or the gateway."""
