"""Where the local cluster keeps things; read by every module here. Nothing is created by naming a path."""

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MACHINE_LOCK = Path("/run/lorafleet-cluster.lock")  # held by whoever changes the machine (up, down, images)
MACHINE_RECORD = Path("/run/lorafleet-cluster.state")  # names the state folder of the machine's one cluster


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache folder outside the repository: what survives `cluster-down`, and the state that doesn't."""

    root: Path

    @property
    def binaries(self) -> Path:
        """Built programs, one folder a pinned source."""
        return self.root / "bin"

    @property
    def state(self) -> Path:
        """Everything of the running cluster; removed by `cluster-down`."""
        return self.root / "cluster"

    @property
    def images(self) -> Path:
        """Base root file systems, image stamps and the registry's store."""
        return self.root / "images"

    @property
    def assets(self) -> Path:
        """The demo model and its adapters (written by e2e/assets)."""
        return self.root / "assets"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig of the running cluster."""
        return self.state / "admin.kubeconfig"


def find_cache() -> Cache:
    """The cache folder: LORAFLEET_CACHE, else ~/.cache/lorafleet."""
    chosen = os.environ.get("LORAFLEET_CACHE")
    return Cache(Path(chosen).resolve() if chosen else Path.home() / ".cache" / "lorafleet")


def foreign_kubeconfig(cache: Cache) -> str | None:
    """KUBECONFIG when it names a cluster of the user's own; None when it is unset or names the local cluster."""
    chosen = os.environ.get("KUBECONFIG")
    return None if not chosen or Path(chosen).resolve() == cache.kubeconfig else chosen
