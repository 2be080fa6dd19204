"""Shared contracts: custom resources, engine ports, capacity arithmetic, names. Imported by all; imports no sibling."""
