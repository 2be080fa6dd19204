"""An adapter's files: what they say, whether this engine computes it exactly, and their packed form.

Runs in the loader process (and in tests); it may use torch on the CPU, and knows neither the loop nor HTTP.
"""
