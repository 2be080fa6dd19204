"""Prometheus of Debian for tests, never installed."""
