"""The local cluster: a real single-node Kubernetes on one Linux machine, built from package registries alone.

Run from the repository root as `python3 -m e2e.cluster`, by the Makefile and by hand; needs Python 3.11's standard
library and root, nothing installed. It may not import LoraFleet's own packages: it runs before any environment exists.
"""
