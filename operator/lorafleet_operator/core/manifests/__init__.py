"""The Kubernetes objects of a pool as plain data. Pure functions of the pool's spec and the operator's settings."""
