"""What each account may do, asked of a real API server: exactly what its program calls, and nothing more.

The API server's answer is complete (SelfSubjectRulesReview), so a right that is added without need fails, too.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.chart.conftest import Render

pytestmark = pytest.mark.apiserver

SYSTEM = "lorafleet-system"
POOLS, TEAM = "rbac-pools", "rbac-team"
Kubectl = Callable[..., str]
Rights = set[tuple[str, str, str, str]]  # group, resource, object ("" = any), verb
KINDS = ("lorapools", "loraadapters", "tenants")
WATCH = ("list", "watch")
OWN = ("create", "patch")
ACCESS = ("ServiceAccount", "Role", "RoleBinding")


def rights(group: str, resources: tuple[str, ...], verbs: tuple[str, ...], name: str = "") -> Rights:
    return {(group, resource, name, verb) for resource in resources for verb in verbs}


GATEWAY = (
    rights("lorafleet.io", KINDS, WATCH)
    | rights("", ("namespaces",), WATCH)
    | rights("discovery.k8s.io", ("endpointslices",), WATCH)
)
OPERATOR = (
    rights("lorafleet.io", KINDS, WATCH)
    | rights("lorafleet.io", tuple(f"{kind}/status" for kind in KINDS), ("patch",))
    | rights("", ("pods", "namespaces", "nodes"), WATCH)
    | rights("apps", ("statefulsets",), (*WATCH, *OWN, "get", "delete"))
    | rights("", ("secrets",), OWN)
    | rights("", ("services",), (*OWN, "get", "delete"))
    | rights("policy", ("poddisruptionbudgets",), (*OWN, "get", "delete"))
    | rights("networking.k8s.io", ("networkpolicies",), ("create", "patch"))
    | rights("", ("events",), ("create",))
)
HOME = (
    rights("coordination.k8s.io", ("leases",), ("create",))
    | rights("coordination.k8s.io", ("leases",), ("get", "update"), "lorafleet-operator")
    | rights("", ("secrets",), ("get", "update"), "lorafleet-port-keys")
    | rights("", ("secrets", "events"), ("create",))
    | rights("", ("secrets",), ("get", "patch"), "lorafleet-engine-ca")
    | rights("", ("configmaps",), ("get", *OWN), "lorafleet-engine-ca")
    | rights("apps", ("deployments",), ("get",), "lorafleet-operator")
)
OPERATOR_AT_HOME = OPERATOR | HOME


def install(kubectl: Kubectl, render: Render, *settings: str) -> None:
    """Apply the accounts, roles and bindings, those without a namespace in the release's."""
    documents = [each for each in render(*settings) if each["kind"].removeprefix("Cluster") in ACCESS]
    for each in documents:
        if not each["kind"].startswith("Cluster"):
            each["metadata"].setdefault("namespace", SYSTEM)
    kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(documents))


@pytest.fixture(scope="module")
def installed(kubectl: Kubectl, render: Render) -> Kubectl:
    """kubectl, with the chart's accounts and roles in the release's namespace, and a namespace for pools."""
    for namespace in (SYSTEM, POOLS):
        kubectl("apply", "-f", "-", stdin=f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n")
    install(kubectl, render)
    return kubectl


def may(kubectl: Kubectl, part: str, namespace: str) -> Rights:
    """All that the API server allows an account in a namespace, but for what every account may ask of itself."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    account = f"--as=system:serviceaccount:{SYSTEM}:lorafleet-{part}"
    answer: dict[str, Any] = json.loads(
        kubectl("create", "--validate=false", "-f", "-", "-o", "json", account, stdin=json.dumps(review))
    )
    assert not answer["status"]["incomplete"]
    found: Rights = set()
    for rule in answer["status"]["resourceRules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in rule.get("resourceNames") or [""]:
                    found |= rights(group, (resource,), tuple(rule["verbs"]), name)
    return {each for each in found if each[0] not in ("authorization.k8s.io", "authentication.k8s.io")}


def test_each_account_may_do_exactly_what_its_program_does(installed: Kubectl) -> None:
    assert may(installed, "operator", POOLS) == OPERATOR
    assert may(installed, "operator", SYSTEM) == OPERATOR_AT_HOME
    assert may(installed, "gateway", POOLS) == GATEWAY
    assert may(installed, "gateway", SYSTEM) == GATEWAY | rights("", ("configmaps",), WATCH, "lorafleet-engine-ca")


def test_credentials_of_sources_are_read_only_where_they_are_listed(installed: Kubectl, render: Render) -> None:
    installed("apply", "-f", "-", stdin=f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {TEAM}}}\n")
    install(installed, render, f"sourceSecrets[0].namespace={TEAM}", "sourceSecrets[0].names={s3}")
    assert may(installed, "operator", TEAM) == OPERATOR | rights("", ("secrets",), ("get",), "s3")
    assert may(installed, "operator", POOLS) == OPERATOR


def test_the_gateways_certificate_is_issued_only_where_that_is_asked_for(installed: Kubectl, render: Render) -> None:
    install(installed, render, "gateway.tls.certificate.enabled=true", "gateway.tls.certificate.by=Operator")
    own = rights("", ("secrets",), ("get", "patch"), "lorafleet-gateway-tls")
    try:
        assert may(installed, "operator", SYSTEM) == OPERATOR_AT_HOME | own
    finally:
        install(installed, render)


def test_whom_to_trust_is_made_by_an_apply(installed: Kubectl) -> None:
    """The right to create by name suffices for that, as an apply tells the name."""
    roots = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "lorafleet-engine-ca", "namespace": SYSTEM},
        "data": {"ca.crt": "none"},
    }
    account = f"--as=system:serviceaccount:{SYSTEM}:lorafleet-operator"
    installed("apply", "--server-side", "-f", "-", account, stdin=json.dumps(roots))
    installed("delete", "configmap", "-n", SYSTEM, "lorafleet-engine-ca")


@pytest.mark.parametrize(
    ("part", "namespace", "question", "answer"),
    [
        ("operator", POOLS, "patch loraadapters.lorafleet.io/pirate --subresource=status", "yes"),
        ("operator", POOLS, "create secrets", "yes"),
        ("operator", POOLS, "create networkpolicies.networking.k8s.io", "yes"),
        ("operator", SYSTEM, "get secrets/lorafleet-port-keys", "yes"),
        ("operator", SYSTEM, "update leases.coordination.k8s.io/lorafleet-operator", "yes"),
        ("operator", POOLS, "get secrets", "no"),
        ("operator", POOLS, "list secrets", "no"),
        ("operator", POOLS, "get secrets/lorafleet-port-keys", "no"),
        ("operator", SYSTEM, "update secrets/lorafleet-port-keys", "yes"),
        ("operator", POOLS, "update secrets/lorafleet-port-keys", "no"),
        ("operator", SYSTEM, "update secrets/other", "no"),
        ("operator", SYSTEM, "get secrets/other", "no"),
        ("operator", SYSTEM, "patch configmaps/other", "no"),
        ("operator", POOLS, "create configmaps/lorafleet-engine-ca", "no"),
        ("operator", SYSTEM, "update leases.coordination.k8s.io/other", "no"),
        ("operator", POOLS, "patch loraadapters.lorafleet.io/pirate", "no"),
        ("operator", POOLS, "delete statefulsets.apps", "yes"),
        ("operator", POOLS, "delete secrets", "no"),
        ("operator", POOLS, "delete networkpolicies.networking.k8s.io", "no"),
        ("operator", POOLS, "delete lorapools.lorafleet.io", "no"),
        ("operator", POOLS, "delete pods", "no"),
        ("operator", POOLS, "create pods --subresource=exec", "no"),
        ("operator", POOLS, "create roles.rbac.authorization.k8s.io", "no"),
        ("operator", POOLS, "escalate roles.rbac.authorization.k8s.io", "no"),
        ("operator", POOLS, "impersonate users", "no"),
        ("operator", POOLS, "create serviceaccounts --subresource=token", "no"),
        ("operator", POOLS, "patch nodes", "no"),
        ("gateway", POOLS, "watch tenants.lorafleet.io", "yes"),
        ("gateway", POOLS, "watch endpointslices.discovery.k8s.io", "yes"),
        ("gateway", SYSTEM, "watch configmaps/lorafleet-engine-ca", "yes"),
        ("gateway", SYSTEM, "watch configmaps", "no"),
        ("gateway", SYSTEM, "get secrets/lorafleet-port-keys", "no"),
        ("gateway", SYSTEM, "get secrets/lorafleet-engine-ca", "no"),
        ("gateway", POOLS, "list secrets", "no"),
        ("gateway", POOLS, "list pods", "no"),
        ("gateway", POOLS, "patch tenants.lorafleet.io --subresource=status", "no"),
        ("gateway", POOLS, "create events", "no"),
    ],
)
def test_can_i(installed: Kubectl, part: str, namespace: str, question: str, answer: str) -> None:
    account = f"--as=system:serviceaccount:{SYSTEM}:lorafleet-{part}"
    # `can-i` ends with status 1 where the answer is no.
    assert installed("auth", "can-i", *question.split(), "-n", namespace, account, accept=(0, 1)).strip() == answer


def test_an_operator_that_rotates_no_keys_may_not_change_them(installed: Kubectl, render: Render) -> None:
    install(installed, render, "operator.portKeys.rotateEvery=")
    try:
        changes = rights("", ("secrets",), ("update",), "lorafleet-port-keys")
        assert may(installed, "operator", SYSTEM) == OPERATOR_AT_HOME - changes
    finally:
        install(installed, render)


def test_with_watched_namespaces_nothing_is_allowed_elsewhere(installed: Kubectl, render: Render) -> None:
    binding = "lorafleet-lorafleet-system-operator"
    installed("delete", "clusterrolebinding", binding)
    install(installed, render, f"watchNamespaces={{{POOLS}}}")
    try:
        assert may(installed, "operator", POOLS) == OPERATOR
        assert may(installed, "operator", SYSTEM) == HOME | rights("", ("namespaces", "nodes"), WATCH)
        assert may(installed, "operator", "default") == rights("", ("namespaces", "nodes"), WATCH)
    finally:
        installed("delete", "rolebinding", "-n", POOLS, binding)
        install(installed, render)
