"""Measuring the engine through its own scheduler, memory and runner: a workload of fixed seeds, and the GPU smoke."""
