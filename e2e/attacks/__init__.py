"""Attacks on a running installation: a table of them, a runner that counts, and the section of docs/security.md."""
