"""Which cluster and namespace a command is about: kubectl's flags. Called by the commands of this room."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lorafleet_kube.access import default_namespace, load_access
from lorafleet_kube.api import KubeApi, connect
from lorafleet_kube.errors import ApiError
from lorafleet_kube.paths import Kind

Object = dict[str, Any]
NOT_FOUND = 404


class AbsentError(Exception):
    """What the command is about is not there; the message says what to look for."""


def add_connection_options(parser: argparse.ArgumentParser, *, all_namespaces: bool = False) -> None:
    """Add `-n`, `--kubeconfig`, `--context` and, where it makes sense, `-A`."""
    parser.add_argument("-n", "--namespace", help="default: the context's")
    if all_namespaces:
        parser.add_argument("-A", "--all-namespaces", action="store_true", help="whatever their namespace")
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, the pod's own, ~/.kube/config")
    parser.add_argument("--context", help="the kubeconfig's context")


@asynccontextmanager
async def open_api(arguments: argparse.Namespace) -> AsyncIterator[KubeApi]:
    """The API server that the flags mean. Raises AccessError."""
    async with connect(await load_access(arguments.kubeconfig, arguments.context)) as api:
        yield api


def namespace_of(arguments: argparse.Namespace) -> str | None:
    """The namespace that the flags mean; None for all of them. Raises AccessError."""
    if getattr(arguments, "all_namespaces", False):
        return None
    return arguments.namespace or default_namespace(arguments.kubeconfig, arguments.context)


async def read_all(api: KubeApi, kind: Kind, namespace: str | None, selector: str = "") -> list[Object]:
    """All objects of a kind. Raises KubeError."""
    params = {"labelSelector": selector} if selector else {}
    found: list[Object] = []
    while True:
        answer = await api.get(kind.path(namespace), {**params, "limit": "500"})
        found += answer.get("items") or []
        following = (answer.get("metadata") or {}).get("continue")
        if not following:
            return found
        params["continue"] = following


async def read_one(api: KubeApi, kind: tuple[str, Kind], namespace: str, name: str) -> Object:
    """One object. Raises AbsentError or KubeError."""
    try:
        return await api.get(kind[1].path(namespace, name))
    except ApiError as error:
        if error.code != NOT_FOUND:
            raise
        raise AbsentError(f"there is no {kind[0]} {namespace}/{name} (-n chooses another namespace)") from error


def condition(found: Object, kind: str) -> Object:
    """One condition of an object's status, {} where it has none."""
    conditions: list[Object] = (found.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def title_of(found: Object) -> str:
    """`namespace/name`."""
    return f"{found['metadata'].get('namespace', '')}/{found['metadata']['name']}"
