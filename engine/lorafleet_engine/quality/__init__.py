"""Is what this engine computes near enough to the model as it was published? Probes, a plain reference, verdicts.

Runs in the loop's process. It drives scheduler and runner as the loop does and knows neither HTTP nor the loader.
"""
