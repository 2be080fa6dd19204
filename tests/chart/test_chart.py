"""The chart renders what a cluster accepts, gives no more rights than needed, and refuses unknown values."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from e2e.cluster.paths import REPOSITORY
from lorafleet_operator.core.manifests.policy import build_network_policy
from lorafleet_operator.core.snapshot import Neighbours
from tests.chart.conftest import CHART, Render, helm
from tests.support.fleet import make_meta

pytestmark = pytest.mark.apiserver


def pods(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment"
    }


def rules(documents: list[dict[str, Any]], kind: str, name: str) -> list[dict[str, Any]]:
    (found,) = (each for each in documents if each["kind"] == kind and each["metadata"]["name"] == name)
    return list(found["rules"])


def test_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("watchNamespaces={a,b}", "imagePullSecrets[0].name=pull", "roles.aggregate=false"),
        (
            "gateway.replicas=3",
            "gateway.limits.store.secretName=store",
            "gateway.service.type=NodePort",
            "gateway.service.annotations.a=b",
        ),
        ("gateway.tls.secretName=certificate",),
        ("networkPolicies.monitoringNamespaces={a,b}", "networkPolicies.clients[0].ipBlock.cidr=10.0.0.0/8"),
        ("networkPolicies.monitoringNamespaces=null", "podDisruptionBudgets.enabled=false"),
        ("operator.nodeSelector.disk=ssd", "operator.tolerations[0].operator=Exists", "gateway.nodeSelector.a=b"),
    ],
)
def test_a_real_api_server_accepts_it(render: Render, kubectl: Callable[..., str], settings: tuple[str, ...]) -> None:
    for namespace in ("a", "b"):
        kubectl("apply", "-f", "-", stdin=f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n")
    manifests = yaml.safe_dump_all(render(*settings))
    kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=manifests)


def test_the_quickstart_is_accepted_and_holds_no_key(kubectl: Callable[..., str]) -> None:
    quickstart = REPOSITORY / "examples" / "quickstart"
    kubectl("apply", "-f", quickstart / "namespace.yaml")
    kubectl("apply", "--server-side", "--dry-run=server", "-k", quickstart)
    documents = [
        document for path in sorted(quickstart.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text())
    ]
    kinds = [document["kind"] for document in documents]
    assert (kinds.count("LoraPool"), kinds.count("LoraAdapter"), kinds.count("Tenant")) == (1, 3, 2)
    assert not [each for each in documents if each["kind"] == "Tenant" and "apiKeys" in each["spec"]]


@pytest.mark.parametrize(
    "wrong",
    [
        "networkPolicies.client=1",
        "networkPolicies.clients[0].pod=1",
        "podDisruptionBudgets.on=true",
        "operator.replica=2",
        "unknown=1",
        "gateway.service.type=Magic",
        "operator.replicas=x",
        "operator.portKeys.rotateEvery=monthly",
        "operator.portKeys.quiet=5s",
    ],
)
def test_unknown_and_wrong_values_are_refused(wrong: str) -> None:
    done = helm("template", "lorafleet", CHART, "--set", wrong)
    assert done.returncode != 0
    assert "don't meet the specifications of the schema" in done.stderr, done.stderr


def test_an_empty_list_of_secrets_is_not_all_of_them() -> None:
    done = helm("template", "lorafleet", CHART, "--set-json", 'sourceSecrets=[{"namespace": "a", "names": []}]')
    assert "don't meet the specifications of the schema" in done.stderr, done.stderr


def test_a_namespace_of_secrets_is_named_once() -> None:
    twice = 'sourceSecrets=[{"namespace": "a", "names": ["x"]}, {"namespace": "a", "names": ["y"]}]'
    done = helm("template", "lorafleet", CHART, "--set-json", twice)
    assert done.returncode != 0
    assert 'two entries of namespace "a": put all names into one' in done.stderr, done.stderr


def test_every_container_is_locked_down_and_probed(render: Render) -> None:
    for name, pod in pods(render()).items():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "readinessProbe" in container or container["name"] == "bootstrap"
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]


def test_replicas_go_to_different_nodes(render: Render) -> None:
    documents = render()
    for name, pod in pods(documents).items():
        (spread,) = pod["topologySpreadConstraints"]
        assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
        assert selected(documents, {"selector": spread["labelSelector"]}) == {name}


def test_several_gateways_are_refused_without_a_store_for_limits(render: Render) -> None:
    refused = helm("template", "lorafleet", CHART, "--set", "gateway.replicas=2")
    assert refused.returncode != 0
    assert "gateway.limits.store.secretName" in refused.stderr
    settings = ("gateway.replicas=2", "gateway.limits.store.secretName=store", "gateway.limits.whenStoreDown=Closed")
    pod = pods(render(*settings))["lorafleet-gateway"]
    (picker,) = pod["containers"]
    given = {each["name"]: each.get("value") for each in picker["env"]}
    (mount,) = (each for each in picker["volumeMounts"] if each["name"] == "limits-store")
    assert given["LORAFLEET_LIMITS_STORE_FILE"] == f"{mount['mountPath']}/url"
    assert given["LORAFLEET_LIMITS_WHEN_DOWN"] == "Closed"
    (volume,) = (each for each in pod["volumes"] if each["name"] == "limits-store")
    assert volume["secret"]["secretName"] == "store"


def test_nobody_reads_secrets_across_the_cluster(render: Render) -> None:
    for document in render():
        if document["kind"] == "ClusterRole":
            for rule in document["rules"]:
                if {"secrets", "*"} & set(rule["resources"]):
                    assert not {"get", "list", "watch", "*"} & set(rule["verbs"]), document["metadata"]["name"]


def test_the_gateway_only_reads(render: Render) -> None:
    verbs = {
        verb for rule in rules(render(), "ClusterRole", "lorafleet-lorafleet-system-gateway") for verb in rule["verbs"]
    }
    assert verbs == {"list", "watch"}


def test_with_tls_clients_reach_no_port_but_the_encrypted_one(render: Render) -> None:
    documents = render("gateway.tls.secretName=certificate")
    (service,) = (each for each in documents if each["kind"] == "Service" and "gateway" in each["metadata"]["name"])
    assert [(port["name"], port["targetPort"]) for port in service["spec"]["ports"]] == [("https", "api-tls")]
    pod = pods(documents)["lorafleet-gateway"]
    bootstrap, envoy = pod["initContainers"]
    folder = next(each["value"] for each in bootstrap["env"] if each["name"] == "LORAFLEET_TLS_DIR")
    (mount,) = (each for each in envoy["volumeMounts"] if each["name"] == "tls")
    assert (mount["mountPath"], mount.get("subPath")) == (folder, None)
    assert {"name": "tls", "secret": {"secretName": "certificate"}} in pod["volumes"]
    assert "tls" not in str(render())


def test_the_gateway_never_gets_the_admin_ports_key(render: Render) -> None:
    (volume,) = (each for each in pods(render())["lorafleet-gateway"]["volumes"] if each["name"] == "port-keys")
    assert {item["key"] for item in volume["secret"]["items"]} == {"serving", "state"}


def test_watched_namespaces_replace_the_cluster_wide_binding(render: Render) -> None:
    documents = render("watchNamespaces={a,b}")
    name = "lorafleet-lorafleet-system-operator"
    bindings = [each for each in documents if each["kind"].endswith("Binding") and each["roleRef"]["name"] == name]
    assert [(each["kind"], each["metadata"].get("namespace")) for each in bindings] == [
        ("RoleBinding", "a"),
        ("RoleBinding", "b"),
    ]
    (operator,) = pods(documents)["lorafleet-operator"]["containers"]
    assert {"name": "LORAFLEET_WATCH_NAMESPACES", "value": "a,b"} in operator["env"]


def test_two_releases_share_no_cluster_scoped_name() -> None:
    names = []
    for namespace in ("one", "two"):
        done = helm("template", "lorafleet", CHART, "--namespace", namespace)
        names.append(
            {
                each["metadata"]["name"]
                for each in yaml.safe_load_all(done.stdout)
                if each and each["kind"].startswith("ClusterRole")
            }
        )
    assert not names[0] & names[1]


def test_the_charts_crds_are_the_generated_ones() -> None:
    generated = {path.name: path.read_text() for path in (REPOSITORY / "crds").glob("*.yaml")}
    assert {path.name: path.read_text() for path in (CHART / "crds").glob("*.yaml")} == generated


def test_the_local_values_take_every_image_from_the_node() -> None:
    values = REPOSITORY / "examples" / "values-local.yaml"
    done = helm("template", "lorafleet", CHART, "--values", values)
    assert done.returncode == 0, done.stderr
    for name, pod in pods([each for each in yaml.safe_load_all(done.stdout) if each]).items():
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["image"].startswith("localhost/lorafleet/"), name
            assert container["image"].endswith(":dev"), name


def policies(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "NetworkPolicy"}


def selected(documents: list[dict[str, Any]], spec: dict[str, Any]) -> set[str]:
    """Names of the Deployments whose pods a policy or budget selects."""
    wanted = (spec.get("podSelector") or spec.get("selector"))["matchLabels"].items()
    return {
        each["metadata"]["name"]
        for each in documents
        if each["kind"] == "Deployment" and wanted <= each["spec"]["template"]["metadata"]["labels"].items()
    }


def test_each_part_has_a_policy_and_a_budget_of_its_own(render: Render) -> None:
    documents = render()
    budgets = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "PodDisruptionBudget"}
    for name in ("lorafleet-operator", "lorafleet-gateway"):
        assert selected(documents, policies(documents)[name]) == {name}
        assert selected(documents, budgets[name]) == {name}
        assert budgets[name]["maxUnavailable"] == 1


def test_only_monitoring_reads_metrics_and_only_the_api_is_open(render: Render) -> None:
    found = policies(render("networkPolicies.monitoringNamespaces={ops}"))
    monitors = [
        {
            "namespaceSelector": {
                "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["ops"]}]
            }
        }
    ]
    assert found["lorafleet-operator"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8080}], "from": monitors}]
    api, health = found["lorafleet-gateway"]["ingress"]
    assert [each["port"] for each in api["ports"]] == [8080]
    assert "from" not in api
    assert health == {"ports": [{"protocol": "TCP", "port": 9003}], "from": monitors}


def test_policies_name_ports_that_the_pods_have(render: Render) -> None:
    documents = render("gateway.tls.secretName=certificate")
    for name, pod in pods(documents).items():
        have = {
            port["containerPort"]
            for container in [*pod.get("initContainers", []), *pod["containers"]]
            for port in container.get("ports", [])
        }
        rules = policies(documents)[name]["ingress"]
        assert {port["port"] for rule in rules for port in rule["ports"]} <= have, name


def test_with_tls_only_the_encrypted_port_is_open(render: Render) -> None:
    api, _ = policies(render("gateway.tls.secretName=certificate"))["lorafleet-gateway"]["ingress"]
    assert [each["port"] for each in api["ports"]] == [8443]


def test_without_monitoring_nobody_reads_metrics(render: Render) -> None:
    found = policies(render("networkPolicies.monitoringNamespaces=null"))
    assert found["lorafleet-operator"]["ingress"] == []
    assert len(found["lorafleet-gateway"]["ingress"]) == 1


def test_the_operator_admits_the_pods_of_this_very_release(render: Render) -> None:
    documents = render()
    (operator,) = pods(documents)["lorafleet-operator"]["containers"]
    env = {each["name"]: each.get("value") for each in operator["env"]}
    neighbours = Neighbours("any", str(env["LORAFLEET_POLICY_INSTANCE"]))
    admin = build_network_policy(make_meta("smol"), neighbours)["spec"]["ingress"][-1]
    (peer,) = admin["from"]
    assert selected(documents, peer) == {"lorafleet-operator"}


def test_policies_can_be_left_to_the_user(render: Render) -> None:
    documents = render("networkPolicies.enabled=false", "podDisruptionBudgets.enabled=false")
    assert not {each["kind"] for each in documents} & {"NetworkPolicy", "PodDisruptionBudget"}
    (operator,) = pods(documents)["lorafleet-operator"]["containers"]
    assert "LORAFLEET_POLICY_INSTANCE" not in {each["name"] for each in operator["env"]}
