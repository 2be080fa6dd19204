"""The device side of a step: a plan's ints become one packed copy, tensors, logits and tokens. Used by loop.py."""
