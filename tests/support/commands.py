"""Runs a command of `lorafleet` in this process, as the program would. Called by tests of commands."""

import argparse
from collections.abc import Callable
from typing import Any

Register = Callable[[Any], None]


def run_command(register: Register, *arguments: object) -> int:
    """The exit code; arguments begin with the command's name."""
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers(required=True))
    parsed = parser.parse_args([str(each) for each in arguments])
    return int(parsed.run(parsed))


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    """A condition of a status."""
    since = "2026-11-30T10:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def custom(kind: str, name: str, namespace: str = "demo", **parts: Any) -> dict[str, Any]:
    """One of our objects as the API server shows it."""
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}", "generation": 1}
    spec = {"poolRef": {"name": "smol", "namespace": "demo"}} if kind != "LoraPool" else {"baseModel": {"name": "b"}}
    return {"apiVersion": "lorafleet.io/v1alpha1", "kind": kind, "metadata": meta, "spec": spec, **parts}
