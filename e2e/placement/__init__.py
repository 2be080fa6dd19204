"""Placement by popularity against hashing and all-on-all: a light simulation of cold loads and of load on replicas."""
