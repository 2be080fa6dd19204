"""Who runs in the next step: decisions over ints. Used by loop.py and bench/; torch-, thread- and clock-free."""
