"""What to do: pure decisions. Never awaits, logs, reads a clock, draws randomness or imports kopf or HTTP."""
