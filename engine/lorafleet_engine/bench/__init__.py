"""Measuring the engine: the fixed workload, the GPU smoke, and `lorafleet bench` with its parts and report."""
