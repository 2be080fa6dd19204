"""The api process: HTTP on three ports <-> messages to the loop and the loader. Never touches tensors."""
