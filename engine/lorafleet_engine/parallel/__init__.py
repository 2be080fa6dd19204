"""Tensor parallelism: one engine over several processes, each with a device and a share of weights, KV and adapters.

Rank 0 is the loop's process. It schedules, samples and decides for all; the others (followers) run what it runs. Pages
and rows of rank have the same numbers everywhere, because every rank's share is equally large.
"""
