"""The bare API server that other rooms' tests build on."""

import json
import ssl
import urllib.request

import pytest

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.binaries import KUBERNETES_VERSION

pytestmark = pytest.mark.apiserver


def ask(apiserver: ApiServer, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    context = ssl.create_default_context(cafile=str(apiserver.ca))
    context.load_cert_chain(apiserver.certificate, apiserver.key)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(apiserver.url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, context=context) as answer:
        return dict(json.load(answer))


def test_it_is_the_pinned_version(apiserver: ApiServer) -> None:
    assert ask(apiserver, "/version")["gitVersion"] == KUBERNETES_VERSION


def test_its_administrator_may_write(apiserver: ApiServer) -> None:
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "probe-"}, "data": {"a": "b"}}
    assert ask(apiserver, "/api/v1/namespaces/default/configmaps", made)["data"] == {"a": "b"}
