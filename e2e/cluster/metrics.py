"""metrics-server, by which an autoscaler sees what pods use; not every cluster has it. Called by `metrics` and e2e."""

from pathlib import Path

from e2e.cluster.archive import ProgramImage, write_archive
from e2e.cluster.binaries import build_missing, locate
from e2e.cluster.commands import step
from e2e.cluster.errors import ClusterError
from e2e.cluster.kubectl import Kubectl, Manifest
from e2e.cluster.paths import Cache, foreign_kubeconfig
from e2e.cluster.places import PLACES
from e2e.cluster.worker import describe_containerd

IMAGE = "localhost/lorafleet/metrics-server:0.9.0"
_API = "v1beta1.metrics.k8s.io"
_NAME = "metrics-server"
_NAMESPACE = "kube-system"
_PORT = 10250
_LABELS = {"k8s-app": _NAME}
_RBAC = "rbac.authorization.k8s.io"


def add_metrics(cache: Cache) -> None:
    """Have the running cluster answer what its pods use. One of the user's own (KUBECONFIG) is only asked.

    Raises ClusterError when that one has no metrics, CommandFailed when metrics-server does not answer in two minutes.
    """
    if foreign := foreign_kubeconfig(cache):
        kubectl = Kubectl(locate(cache, "kubectl"), Path(foreign))
        if not kubectl.succeeds("get", "apiservice", _API):
            raise ClusterError(f"the cluster of KUBECONFIG={foreign} has no metrics-server: install it there")
        return
    build_missing(cache, [_NAME])
    with step("starting metrics-server"):
        _load_image(cache)
        kubectl = Kubectl(locate(cache, "kubectl"), cache.kubeconfig)
        kubectl.apply([*_access(), *_workload()])
        kubectl.run("wait", "--for=condition=Available", f"apiservice/{_API}", "--timeout=120s")


def _load_image(cache: Cache) -> None:
    archive = cache.state / "image.tar"
    for place in PLACES:
        containerd = describe_containerd(cache, place)
        if IMAGE not in containerd.images():
            write_archive(ProgramImage(IMAGE, locate(cache, _NAME), (f"/{_NAME}",)), archive)
            containerd.import_image(archive)
    archive.unlink(missing_ok=True)


def _access() -> list[Manifest]:
    """What it may read, and that the API server may ask it whom it trusts."""
    role = f"system:{_NAME}"
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata()},
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": role}, "rules": rules},
        _binding("ClusterRoleBinding", {"name": role}, "ClusterRole", role),
        _binding("ClusterRoleBinding", {"name": f"{_NAME}:delegator"}, "ClusterRole", "system:auth-delegator"),
        _binding("RoleBinding", _metadata(), "Role", "extension-apiserver-authentication-reader"),
    ]


def _binding(kind: str, metadata: Manifest, role_kind: str, role: str) -> Manifest:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": role_kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": _NAME, "namespace": _NAMESPACE}],
    }


def _workload() -> list[Manifest]:
    container = {
        "name": _NAME,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": [
            "--cert-dir=/tmp",
            f"--secure-port={_PORT}",
            "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-certificate-authority=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
            "--metric-resolution=15s",
        ],
        "ports": [{"name": "https", "containerPort": _PORT}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "https", "scheme": "HTTPS"}, "periodSeconds": 2},
        "volumeMounts": [{"name": "certificates", "mountPath": "/tmp"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    pod = {
        "serviceAccountName": _NAME,
        "priorityClassName": "system-cluster-critical",
        "containers": [container],
        "volumes": [{"name": "certificates", "emptyDir": {}}],
    }
    template = {"metadata": {"labels": _LABELS}, "spec": pod}
    service = {"selector": _LABELS, "ports": [{"name": "https", "port": 443, "targetPort": "https"}]}
    api = {
        "group": "metrics.k8s.io",
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,  # it makes its certificate itself
        "service": {"name": _NAME, "namespace": _NAMESPACE},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": _LABELS}, "template": template}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(), "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(), "spec": service},
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": _API}, "spec": api},
    ]


def _metadata() -> Manifest:
    return {"name": _NAME, "namespace": _NAMESPACE, "labels": _LABELS}
