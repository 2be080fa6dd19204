"""A reader's way through the docs, by their own shell blocks: the README's quickstart on an empty cluster, then an
upgrade from older CRDs, a rollback and the uninstallation of docs/operations.md."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client
from e2e.cluster.commands import run
from e2e.cluster.paths import find_cache
from e2e.engines import POOL
from e2e.fleet import CHART, CRDS, DEMO, IMAGES, KINDS, NAMESPACE, QUICKSTART, RELEASE, Fleet, Object, forwarded
from e2e.images.delivery import name_images
from e2e.quickstart import Keys
from e2e.removal import left, remove_all, wait_until_nothing_is_left
from e2e.waiting import wait_until
from lorafleet_contracts.names import LABEL_POOL
from tests.support.shell_blocks import Block, Check, Shell, make_shell, manifests, read_yaml, run_page
from tests.support.source_servers import free_port

NEW_FIELD = "trainedOn"  # of a LoraAdapter's spec: stands for whatever the next version adds
CRD = "loraadapters.lorafleet.io"
LEVEL = "LORAFLEET_LOG_LEVEL"
SERVING = "serving"
"""Where docs/install.md has its pool."""
RULES: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "prometheusrules.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "PrometheusRule", "plural": "prometheusrules"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
"""Stands for Prometheus Operator."""


@pytest.fixture
def shell(fleet: Fleet, tmp_path: Path) -> Shell:
    """A reader's shell. Port 8080 of this machine may be taken, so that another one stands for it."""
    made = make_shell(tmp_path, fleet.kubectl.kubeconfig)
    port = free_port()
    made.means.update({"8080:8080": f"{port}:8080", "localhost:8080": f"localhost:{port}"})
    return made


def with_images(values: dict[str, Any]) -> dict[str, Any]:
    """A page's values with the images of this tree, by their content, so that no test after this rolls any."""
    names = name_images(find_cache())
    for value, image in IMAGES.items():
        part = values
        for word in value.split("."):
            part = part[word]
        part["repository"], part["tag"] = names[image].rsplit(":", 1)
    return values


def put_images(folder: Path) -> None:
    """Name them in the examples."""
    path = folder / "examples" / "values-local.yaml"
    path.write_text(yaml.safe_dump(with_images(yaml.safe_load(path.read_text()))))
    if os.environ.get("REGISTRY"):
        path = folder / "examples" / "quickstart" / "kustomization.yaml"
        name, tag = name_images(find_cache())["demo-assets"].rsplit(":", 1)
        moved = {"name": "localhost/lorafleet/demo-assets", "newName": name, "newTag": tag}
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"images": [moved]}))


def empty(fleet: Fleet) -> None:
    """Remove LoraFleet, where it is, and the namespaces of the pages."""
    if left(fleet, SERVING):
        remove_all(fleet)
    fleet.kubectl.run("delete", "namespace", NAMESPACE, DEMO, SERVING, "--ignore-not-found")
    wait_until_nothing_is_left(fleet, SERVING)


def check_chat(said: str, model: str) -> None:
    """The last that was printed is an answer. It is drawn at the default temperature, so it may say anything."""
    answer = json.loads(said[said.rindex('{"id"') :].splitlines()[0])
    assert answer["model"] == model
    assert answer["choices"][0]["message"]["content"]


def test_the_readme_leads_from_an_empty_cluster_to_the_first_answer(fleet: Fleet, shell: Shell) -> None:
    @contextmanager
    def stage(shell: Shell) -> Iterator[Check]:
        empty(fleet)
        put_images(shell.folder)

        def check(block: Block, said: str) -> None:
            check_chat(said, "pirate")

        yield check

    run_page("README.md", "cluster", shell, stage)


def spec_fields(crd: dict[str, Any]) -> dict[str, Any]:
    """The schemas of the fields of a LoraAdapter's spec."""
    (version,) = crd["spec"]["versions"]
    fields: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return fields


def older_crd() -> dict[str, Any]:
    """LoraAdapter as a version before had it: without the field."""
    crd: dict[str, Any] = yaml.safe_load((CHART / "crds" / "loraadapters.yaml").read_text())
    del spec_fields(crd)[NEW_FIELD]
    return crd


def served_fields(fleet: Fleet) -> dict[str, Any]:
    """Those of the cluster's CRD."""
    found = fleet.get("crd", CRD, DEMO)
    assert found
    return spec_fields(found)


def level(fleet: Fleet, part: str) -> str:
    """A setting by which the two revisions differ, as the pods have it."""
    found = fleet.get("deployment", f"lorafleet-{part}", NAMESPACE)
    assert found
    assert found["status"]["updatedReplicas"] == found["status"]["readyReplicas"] == found["spec"]["replicas"]
    env = found["spec"]["template"]["spec"]["containers"][0]["env"]
    return str(next(each["value"] for each in env if each["name"] == LEVEL))


def engines(fleet: Fleet) -> dict[str, tuple[str, int]]:
    """Each engine pod with its uid and how often it was restarted."""
    pods = fleet.list("pods", DEMO, f"{LABEL_POOL}={POOL}")
    return {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in pods
    }


def objects(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """What users wrote, by uid."""
    return {each["metadata"]["uid"]: each["spec"] for kind in KINDS for each in fleet.list(kind)}


def check_answers(fleet: Fleet, keys: Keys) -> None:
    """Each adapter in its style; a port-forward of its own, since gateway pods come and go here."""
    fleet.wait_ready(seconds=30)
    with forwarded(fleet.kubectl, "svc/lorafleet-gateway", 8080, NAMESPACE) as address:
        assert style_of(Client(address, keys.acme).ask("pirate", UNSEEN[0])) == "pirate"
        assert style_of(Client(address, keys.globex).ask("support", UNSEEN[0])) == "support"


def put_values(fleet: Fleet, shell: Shell) -> None:
    """The reader's values.yaml: what the release has, and another level of the logs."""
    words = ["get", "values", RELEASE, "-n", NAMESPACE, "-o", "yaml"]
    values = yaml.safe_load(run([fleet.helm, *words], env=fleet.environment()))
    for part in ("operator", "gateway"):
        values[part]["logLevel"] = "DEBUG"
    (shell.folder / "values.yaml").write_text(yaml.safe_dump(values))


def test_upgrade_and_rollback_touch_no_engine_and_uninstalling_leaves_nothing(
    fleet: Fleet, keys: Keys, shell: Shell
) -> None:
    @contextmanager
    def stage(shell: Shell) -> Iterator[Check]:
        fleet.kubectl.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump(older_crd()))
        assert NEW_FIELD not in served_fields(fleet)
        put_values(fleet, shell)
        check_answers(fleet, keys)
        before = engines(fleet), objects(fleet)

        def check(block: Block, said: str) -> None:
            if "delete crd" in block.text:
                assert all(name in block.text for name in CRDS)
                wait_until_nothing_is_left(fleet)
                return
            assert (engines(fleet), objects(fleet)) == before
            if "helm uninstall" in block.text:
                kinds = "deployments,pods,services,secrets"
                wait_until(lambda: not fleet.list(kinds, NAMESPACE), seconds=120, what=f"none of {kinds}")
                return
            upgraded = "helm upgrade" in block.text
            assert upgraded or "helm rollback" in block.text
            assert {level(fleet, part) for part in ("operator", "gateway")} == {"DEBUG" if upgraded else "INFO"}
            assert NEW_FIELD in served_fields(fleet)
            check_answers(fleet, keys)

        yield check

    run_page("docs/operations.md", "cluster", shell, stage)


def first_pool(fleet: Fleet) -> list[Object]:
    """The objects of docs/install.md, with a pool in the place of theirs that needs neither GPU nor volume."""
    pool = next(each for each in quickstart(fleet) if each["kind"] == "LoraPool")["spec"]
    base = f"http://demo-assets.{DEMO}/"
    pool |= {"baseModel": {**pool["baseModel"], "source": {"uri": f"{base}smollm2"}}, "replicas": {"min": 1}}
    found = manifests("docs/install.md")
    for each in found:
        if each["kind"] == "LoraPool":
            each["spec"] = pool | {"sources": {"allow": [{"prefix": base, "private": True}]}}
        if each["kind"] == "LoraAdapter":
            each["spec"]["source"]["uri"] = f"{base}adapters/support"
    return found


def quickstart(fleet: Fleet) -> list[Object]:
    """The objects of examples/quickstart."""
    return list(yaml.safe_load_all(fleet.kubectl.run("kustomize", str(QUICKSTART))))


def put_what_the_page_asks_for(fleet: Fleet, shell: Shell) -> None:
    """Its cluster, a server of files beside it, and its files: values, pool, certificate."""
    others = ("LoraPool", "LoraAdapter", "Tenant")
    fleet.apply(RULES, *(each for each in quickstart(fleet) if each["kind"] not in others))
    values = next(each for each in read_yaml("docs/install.md") if "imageTag" in each)
    (shell.folder / "values.yaml").write_text(yaml.safe_dump(with_images(values)))
    (shell.folder / "first-pool.yaml").write_text(yaml.safe_dump_all(first_pool(fleet)))
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-noenc", "-keyout", "tls.key", "-out", "tls.crt"]
    name = "gateway.corp.example"
    run([*request, "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"], cwd=shell.folder)


@pytest.mark.long
def test_the_page_on_installing_leads_to_an_answer_over_tls(fleet: Fleet, shell: Shell) -> None:
    @contextmanager
    def stage(shell: Shell) -> Iterator[Check]:
        empty(fleet)
        put_what_the_page_asks_for(fleet, shell)

        def check(block: Block, said: str) -> None:
            if "helm install" in block.text:
                assert fleet.get("prometheusrule", "lorafleet", NAMESPACE)
            if "curl" in block.text:
                assert '"id":"support"' in said.replace('": "', '":"')
                check_chat(said, "support")

        yield check
        empty(fleet)
        fleet.delete("crd", RULES["metadata"]["name"])

    run_page("docs/install.md", "long", shell, stage)
