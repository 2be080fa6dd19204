"""The kinds of Flux and Argo CD as their own modules ship them, from the Go proxy. Used by tests/gitops.

`python -m tests.gitops.foreign` fetches what the cache lacks; of a module only the files that are named here are kept.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.paths import Cache, find_cache


@dataclass(frozen=True, slots=True)
class Module:
    """A pinned Go module (`sum` is what go.sum has) and the CRDs in it that our examples use."""

    path: str
    version: str
    sum: str
    files: tuple[str, ...]

    def locate(self, cache: Cache) -> list[Path]:
        """Where the CRDs lie once they are fetched."""
        key = hashlib.sha256(repr(self).encode()).hexdigest()[:12]
        return [cache.root / "crds" / key / Path(file).name for file in self.files]


FLUX = "config/crd/bases"
MODULES = (
    Module(
        "github.com/fluxcd/source-controller",
        "v1.9.1",
        "h1:FF8XTxLND/pXzVtUESKURUDiItFJQDZBZkbHvZimN8s=",
        (f"{FLUX}/source.toolkit.fluxcd.io_gitrepositories.yaml",),
    ),
    Module(
        "github.com/fluxcd/kustomize-controller",
        "v1.9.1",
        "h1:jggQk9hMsnXG9QdPWNSKhttH5NdVN+HXm/dbKAJ3Uw8=",
        (f"{FLUX}/kustomize.toolkit.fluxcd.io_kustomizations.yaml",),
    ),
    Module(
        "github.com/fluxcd/helm-controller",
        "v1.6.0",
        "h1:jlS5X11SG26gspubB5aLrdVSCm0q0tA4ULsY+vwSkL0=",
        (f"{FLUX}/helm.toolkit.fluxcd.io_helmreleases.yaml",),
    ),
    Module(
        "github.com/argoproj/argo-cd/v3",
        "v3.4.0",
        "h1:yZwfaOIzE/aQTA52mOfeZQbribmyxKYvMgirQja4eX0=",
        ("manifests/crds/application-crd.yaml",),
    ),
)


def foreign_crds(cache: Cache) -> list[Path]:
    """All CRDs, fetched where the cache lacks them. Raises RuntimeError when a module is not what was pinned."""
    for module in MODULES:
        if not all(path.exists() for path in module.locate(cache)):
            _fetch(cache, module)
    return [path for module in MODULES for path in module.locate(cache)]


def _fetch(cache: Cache, module: Module) -> None:
    """Have Go fetch and verify a module, keep our files and drop the rest."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["go", "mod", "download", "-json", f"{module.path}@{module.version}"]
        env = {**os.environ, "GOMODCACHE": scratch, "GOFLAGS": "-modcacherw"}
        done = subprocess.run(command, cwd=scratch, env=env, capture_output=True, text=True, check=False)
        found = json.loads(done.stdout or "{}")
        if done.returncode or found.get("Sum") != module.sum:
            why = found.get("Error") or done.stderr or f"its sum is {found.get('Sum')}, not {module.sum}"
            raise RuntimeError(f"{module.path}@{module.version}: {why}")
        for file, kept in zip(module.files, module.locate(cache), strict=True):
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_suffix(f".{os.getpid()}")
            part.write_bytes((Path(found["Dir"]) / file).read_bytes())
            part.replace(kept)


if __name__ == "__main__":
    sys.stdout.writelines(f"{path}\n" for path in foreign_crds(find_cache()))
