"""Talking to the Kubernetes API server: access, requests, reflectors. Used by operator/shell and gateway/shell.

Knows no custom resource and decides nothing; imports aiohttp, orjson and the kubernetes package's configuration only.
"""
