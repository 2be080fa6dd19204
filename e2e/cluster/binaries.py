"""Builds the cluster's programs from pinned Go modules into the cache; called by `up`, `apiserver` and `binaries`.

Nothing is downloaded ready-made: `go.mod` and `go.sum` beside this file pin Kubernetes and etcd; Helm and CoreDNS,
whose dependencies conflict with those, are installed by version. What is in the cache is never built again.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import require_tool, run, step
from e2e.cluster.paths import Cache

KUBERNETES_VERSION = "v1.36.3"
_MODULE = Path(__file__).resolve().parent
_VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Program:
    """One Go program: its file name, its package, and a version when it lies outside the module beside this file."""

    name: str
    package: str
    version: str = ""


PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "go.etcd.io/etcd/server/v3"),
        Program("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        Program("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        Program("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        Program("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        Program("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
        Program("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        Program("coredns", "github.com/coredns/coredns", "v1.12.4"),
        Program("helm", "helm.sh/helm/v4/cmd/helm", "v4.3.1"),
    )
}
APISERVER_PROGRAMS = ("etcd", "kube-apiserver")


def locate(cache: Cache, name: str) -> Path:
    """Where the program `name` lies in the cache once it is built."""
    program = PROGRAMS[name]
    key = f"{name}-{program.version}" if program.version else f"kubernetes-{KUBERNETES_VERSION}-{module_digest()}"
    return cache.binaries / key / name


def module_digest() -> str:
    """Twelve hexadecimal digits that change whenever the pinned module does."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        digest.update((_MODULE / name).read_bytes())
    return digest.hexdigest()[:12]


def build_missing(cache: Cache, names: Iterable[str] = PROGRAMS) -> None:
    """Build those of `names` that the cache lacks, one after another. Raises ToolMissing without Go."""
    for name in names:
        target = locate(cache, name)
        if target.exists():
            continue
        require_tool("go")
        with step(f"building {name}"):
            _build(PROGRAMS[name], target)


def _build(program: Program, target: Path) -> None:
    """Build beside `target` and move into place, so that a cut-off build leaves no half program."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{program.name}-", dir=target.parent))
    try:
        built = _install_version(program, scratch) if program.version else _build_in_module(program, scratch)
        os.replace(built, target)
    finally:
        shutil.rmtree(scratch)


def _build_in_module(program: Program, scratch: Path) -> Path:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    stamps = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(["-s", "-w", *(f"-X {_VERSION_PACKAGE}.{name}={value}" for name, value in stamps.items())])
    built = scratch / program.name
    run(
        ["nice", "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", built, program.package],
        cwd=_MODULE,
        env={"CGO_ENABLED": "0"},
    )
    return built


def _install_version(program: Program, scratch: Path) -> Path:
    run(
        ["nice", "go", "install", "-trimpath", "-ldflags", "-s -w", f"{program.package}@{program.version}"],
        cwd=scratch,
        env={"CGO_ENABLED": "0", "GOBIN": str(scratch)},
    )
    return scratch / program.name
