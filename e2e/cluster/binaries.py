"""Builds the cluster's programs from pinned Go modules into the cache; called by `up`, `apiserver` and `binaries`.

Nothing is downloaded ready-made: `go.mod` and `go.sum` beside this file pin Kubernetes and etcd; Helm, CoreDNS,
kube-router and metrics-server, whose dependencies conflict with those, are installed by version. What is in the cache
is never built again, so the compiler's own caches (7 GB) go once every program that a cluster needs is there.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import require_tool, run, step
from e2e.cluster.paths import REPOSITORY, Cache

KUBERNETES_VERSION = "v1.36.3"
_MODULE = Path(__file__).resolve().parent
_VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Program:
    """One Go program: its file name, its package, and a version when it lies outside the module beside this file.

    `module` is the folder of a module of our own that has it instead.
    """

    name: str
    package: str
    version: str = ""
    module: Path = _MODULE


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
        Program("kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router", "v2.1.0"),
        Program("metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server", "v0.9.0"),
        Program("actionlint", "github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12"),
        Program("kstatus", ".", module=REPOSITORY / "tests" / "gitops" / "kstatus"),
        Program(
            "cert-manager",
            "github.com/cert-manager/cert-manager/cmd/controller",
            module=REPOSITORY / "tests" / "chart" / "certmanager",
        ),
    )
}
APART = ("metrics-server", "actionlint", "kstatus", "cert-manager")
"""Not every cluster needs it: it is built when it is asked for."""
NEEDED = tuple(name for name in PROGRAMS if name not in APART)
"""What every cluster is made of."""
APISERVER_PROGRAMS = ("etcd", "kube-apiserver")


def locate(cache: Cache, name: str) -> Path:
    """Where the program `name` lies in the cache once it is built."""
    program = PROGRAMS[name]
    if program.version:
        key = f"{name}-{program.version}"
    elif program.module == _MODULE:
        key = f"kubernetes-{KUBERNETES_VERSION}-{module_digest()}"
    else:
        key = f"{name}-{module_digest(program.module)}"
    return cache.binaries / key / name


def module_digest(module: Path = _MODULE) -> str:
    """Twelve hexadecimal digits that change whenever the pinned module, or our own code in it, does."""
    digest = hashlib.sha256()
    for path in (module / "go.mod", module / "go.sum", *sorted(module.glob("*.go"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def build_missing(cache: Cache, names: Iterable[str] = NEEDED) -> None:
    """Build those of `names` that the cache lacks, one after another. Raises ToolMissing without Go."""
    missing = [name for name in names if not locate(cache, name).exists()]
    for name in missing:
        target = locate(cache, name)
        require_tool("go")
        with step(f"building {name}"):
            _build(cache, PROGRAMS[name], target)
    if missing and all(locate(cache, name).exists() for name in NEEDED):
        shutil.rmtree(_compiler_caches(cache), ignore_errors=True)


def _compiler_caches(cache: Cache) -> Path:
    return cache.root / "go"


def _build(cache: Cache, program: Program, target: Path) -> None:
    """Build elsewhere and move into place, so that a cut-off build leaves no half program."""
    caches = _compiler_caches(cache)
    for folder in (caches, target.parent):
        folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=program.name, dir=caches))
    env = {
        "CGO_ENABLED": "0",
        "GOCACHE": str(caches / "build"),
        "GOMODCACHE": str(caches / "modules"),
        "GOFLAGS": "-trimpath -modcacherw",
    }
    try:
        built = _install_version(program, scratch, env) if program.version else _build_in_module(program, scratch, env)
        os.replace(built, target)
    finally:
        shutil.rmtree(scratch)


def _build_in_module(program: Program, scratch: Path, env: Mapping[str, str]) -> Path:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    stamps = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(["-s", "-w", *(f"-X {_VERSION_PACKAGE}.{name}={value}" for name, value in stamps.items())])
    built = scratch / program.name
    run(
        ["nice", "go", "build", "-buildvcs=false", "-ldflags", flags, "-o", built, program.package],
        cwd=program.module,
        env=env,
    )
    return built


def _install_version(program: Program, scratch: Path, env: Mapping[str, str]) -> Path:
    run(
        ["nice", "go", "install", "-ldflags", "-s -w", f"{program.package}@{program.version}"],
        cwd=scratch,
        env={**env, "GOBIN": str(scratch)},
    )
    return scratch / program.name
