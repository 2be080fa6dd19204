"""One folder an op: `reference.py` is the op in plain torch and the CPU backend; a `kernel.py` beside it is its twin.

Called by layers/ only. Kernels import torch (and triton), nothing else of this package, and read no settings.
"""
