"""What runs in the cluster from the start: cluster DNS (CoreDNS behind 10.96.0.10); applied by lifecycle."""

from e2e.cluster.kubectl import Kubectl, Manifest
from e2e.cluster.worker import DNS_ADDRESS

COREDNS_IMAGE = "localhost/lorafleet/coredns:1.12.4"
_NAMESPACE = "kube-system"
_PORT = 1053  # an ordinary user may not listen on 53; the Service does
_LABELS = {"k8s-app": "kube-dns"}
_COREFILE = f"""\
cluster.local:{_PORT} in-addr.arpa:{_PORT} {{
    errors
    health :8080
    ready :8181
    kubernetes cluster.local in-addr.arpa {{
        ttl 5
    }}
    cache 5
}}
# Pods reach nothing outside: say at once that other names do not exist.
.:{_PORT} {{
    errors
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def apply_dns(kubectl: Kubectl) -> None:
    """Apply CoreDNS and wait until it answers. Raises CommandFailed when it does not within a minute."""
    kubectl.apply([*_access(), *_workload()])
    kubectl.run("rollout", "status", "deployment/coredns", f"--namespace={_NAMESPACE}", "--timeout=60s")


def _access() -> list[Manifest]:
    reader = {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]}
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    role = "system:coredns"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata()},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [reader, slices],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": _NAMESPACE}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(), "data": {"Corefile": _COREFILE}},
    ]


def _workload() -> list[Manifest]:
    ports = [{"name": f"dns-{protocol.lower()}", "containerPort": _PORT, "protocol": protocol} for protocol in _BOTH]
    container = {
        "name": "coredns",
        "image": COREDNS_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": ports,
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8080}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    pod = {
        "serviceAccountName": "coredns",
        "dnsPolicy": "Default",
        "priorityClassName": "system-cluster-critical",
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }
    template = {"metadata": {"labels": _LABELS}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": _LABELS}, "template": template}
    service_ports = [
        {"name": f"dns-{protocol.lower()}", "port": 53, "targetPort": _PORT, "protocol": protocol} for protocol in _BOTH
    ]
    service = {"clusterIP": DNS_ADDRESS, "selector": _LABELS, "ports": service_ports}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(), "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {**_metadata(), "name": "kube-dns"}, "spec": service},
    ]


_BOTH = ("UDP", "TCP")


def _metadata() -> Manifest:
    return {"name": "coredns", "namespace": _NAMESPACE, "labels": _LABELS}
