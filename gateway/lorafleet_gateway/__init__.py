"""The gateway: maps keys to tenants and requests to replicas. Never imports the operator or the engine."""
