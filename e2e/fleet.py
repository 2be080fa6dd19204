"""LoraFleet on a cluster as its users run it: helm, kubectl and the `lorafleet` command.

Used by the demo and the e2e tests. KUBECONFIG names the cluster; without it, the local one of e2e/cluster.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.binaries import locate
from e2e.cluster.commands import run
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.paths import REPOSITORY, find_cache
from e2e.images.delivery import name_images

RELEASE = "lorafleet"
NAMESPACE = "lorafleet-system"
DEMO = "demo"
CHART = REPOSITORY / "charts" / "lorafleet"
QUICKSTART = REPOSITORY / "examples" / "quickstart"
KINDS = ("lorapools", "loraadapters", "tenants")
CRDS = tuple(f"{kind}.lorafleet.io" for kind in KINDS)
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
KEY_ID = "e2e"
IMAGES = {
    "operator.image": "operator",
    "gateway.image": "gateway",
    "gateway.envoy.image": "gateway",  # it has Envoy inside
    "engine.image": "engine",
}

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fleet:
    """One cluster and the installation on it."""

    kubectl: Kubectl
    helm: Path

    def install(self, *settings: str) -> None:
        """Install or upgrade the chart and wait until operator and gateway are ready. `settings` are Helm's `--set`.

        Its namespace admits only pods that Pod Security calls restricted; so does the quickstart's.
        """
        self.make_namespace()
        self.kubectl.run("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
        self.forget_killed()
        chosen = [word for setting in settings for word in ("--set", setting)]
        waiting = ("--wait", "--timeout", "5m")
        self._helm("upgrade", "--install", RELEASE, str(CHART), *waiting, *image_values(), *chosen)

    def make_namespace(self) -> None:
        """The namespace of the release, where there is none yet."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}})

    def forget_killed(self) -> None:
        """Drop Helm's note of an operation that was killed midway: it refuses every other one while that stands."""
        mark = f"owner=helm,name={RELEASE},status in (pending-install,pending-upgrade,pending-rollback)"
        self.kubectl.run("delete", "secrets", "-n", NAMESPACE, "-l", mark)

    def roll_back(self) -> None:
        """Go back to the revision before and wait until operator and gateway are ready."""
        self._helm("rollback", RELEASE, "--wait", "--timeout", "5m")

    def uninstall(self) -> None:
        """Remove the release, where there is one; Helm leaves the CRDs."""
        self._helm("uninstall", RELEASE, "--wait", "--timeout", "5m", "--ignore-not-found")

    def create_key(self, namespace: str, tenant: str) -> str:
        """Give a Tenant the key `e2e` with the `lorafleet` command, in place of an older one, and return it."""
        found = self.get("tenant", tenant, namespace)
        for index, entry in enumerate(found["spec"].get("apiKeys", []) if found else []):
            if entry["id"] == KEY_ID:
                path = f"/spec/apiKeys/{index}"
                steps = [{"op": "test", "path": f"{path}/id", "value": KEY_ID}, {"op": "remove", "path": path}]
                self.kubectl.run("patch", "tenant", tenant, "-n", namespace, "--type=json", "-p", json.dumps(steps))
        words = ["key", "create", "-n", namespace, "--tenant", tenant, "--id", KEY_ID]
        return run([sys.executable, "-m", "lorafleet_contracts.cli", *words], env=self.environment()).strip()

    def get(self, kind: str, name: str, namespace: str = DEMO) -> Object | None:
        """Read one object; None where there is none."""
        text = self.kubectl.run("get", kind, name, "-n", namespace, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, namespace: str = DEMO, selector: str = "") -> list[Object]:
        """Read all objects of a kind in a namespace."""
        words = ["-l", selector] if selector else []
        return list(json.loads(self.kubectl.run("get", kind, "-n", namespace, "-o", "json", *words))["items"])

    def apply(self, *manifests: Object) -> None:
        """Apply objects the way a user's `kubectl apply -f` does."""
        listing = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl.run("apply", "-f", "-", stdin=json.dumps(listing))

    def patch(self, kind: str, name: str, spec: Object, namespace: str = DEMO) -> None:
        """Merge into an object's spec; None removes a field."""
        self.kubectl.run("patch", kind, name, "-n", namespace, "--type=merge", "-p", json.dumps({"spec": spec}))

    def delete(self, kind: str, name: str, namespace: str = DEMO) -> None:
        """Delete one object and wait until it is gone; no error where there is none."""
        self.kubectl.run("delete", kind, name, "-n", namespace, "--ignore-not-found")

    def wait_ready(self, namespace: str = DEMO, seconds: int = 240) -> None:
        """`kubectl wait --for=condition=Ready` on all three kinds."""
        self.kubectl.run(
            "wait", "--for=condition=Ready", ",".join(KINDS), "--all", "-n", namespace, f"--timeout={seconds}s"
        )

    def _helm(self, *words: str) -> str:
        return run([self.helm, "-n", NAMESPACE, *words], env=self.environment())

    def environment(self) -> dict[str, str]:
        """What a program needs besides the present environment to reach this cluster."""
        return {"KUBECONFIG": str(self.kubectl.kubeconfig)} if self.kubectl.kubeconfig else {}


def image_values() -> list[str]:
    """Helm's arguments for the images of this tree, named by their content: what changed is rolled, nothing else."""
    names = name_images(find_cache())
    words = []
    for value, image in IMAGES.items():
        repository, tag = names[image].rsplit(":", 1)
        words += [
            "--set",
            f"{value}.repository={repository}",
            "--set-string",
            f"{value}.tag={tag}",
        ]  # may be all digits
    return words


def find_fleet() -> Fleet:
    """The cluster of KUBECONFIG, else the local one."""
    cache = find_cache()
    own = None if os.environ.get("KUBECONFIG") else cache.kubeconfig
    return Fleet(Kubectl(locate(cache, "kubectl"), own), locate(cache, "helm"))


def condition(subject: Object | None, kind: str) -> Object:
    """One condition of an object; an empty one where it has none (yet)."""
    found = (subject or {}).get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == kind), {})


def holds(subject: Object | None, kind: str, status: str = "True") -> bool:
    """Whether a condition has this status for the object's present generation."""
    if not subject:
        return False
    current = subject.get("status", {}).get("observedGeneration") == subject["metadata"]["generation"]
    return current and condition(subject, kind).get("status") == status


def adapter(name: str, folder: str = "adapters", *, source: str | None = None, **spec: object) -> Object:
    """A LoraAdapter of the demo's pool; its files are `source` (default: its own name) in a folder of demo-assets."""
    uri = f"http://demo-assets/{folder}/{source or name}"
    return {
        "apiVersion": "lorafleet.io/v1alpha1",
        "kind": "LoraAdapter",
        "metadata": {"name": name, "namespace": DEMO},
        "spec": {"poolRef": {"name": "smol"}, "source": {"uri": uri}, **spec},
    }


@contextmanager
def forwarded(kubectl: Kubectl, target: str, port: int, namespace: str = NAMESPACE) -> Iterator[str]:
    """Reach a port of a Service or pod through `kubectl port-forward`; gives its http address."""
    own = [f"--kubeconfig={kubectl.kubeconfig}"] if kubectl.kubeconfig else []
    command = [str(kubectl.program), *own, "port-forward", "-n", namespace, target, f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line.startswith("Forwarding from 127.0.0.1:"):
                raise ConnectionError(f"no port-forward to {target}: {line!r}")
            yield f"http://127.0.0.1:{line.split(':')[1].split()[0]}"
        finally:
            process.terminate()
