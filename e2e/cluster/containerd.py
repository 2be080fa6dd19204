"""containerd of a node: its configuration and its image store; used by worker and images.

The stores outlive the cluster. Another node's is made from the first's out of hard links, so that an image lies on the
disk, and in the page cache, once.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from e2e.cluster.commands import pipe_into, run, succeeds
from e2e.cluster.processes import ProcessTable

PAUSE_IMAGE = "localhost/lorafleet/pause:1"
_NAMESPACE = "k8s.io"


@dataclass(frozen=True, slots=True)
class Containerd:
    """One containerd: `root` holds images, `state` belongs to the running cluster.

    `process` is its name in the table of processes, `inside` what runs a command in its node's network.
    """

    root: Path
    state: Path
    cni_config: Path
    process: str = "containerd"
    inside: tuple[str, ...] = ()

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.state / "containerd.sock"

    def start(self, processes: ProcessTable, *, with_kubernetes: bool) -> None:
        """Start it and wait until it answers; without Kubernetes it adopts nothing of what an earlier run left."""
        self.state.mkdir(parents=True, exist_ok=True)
        config = self.state / "containerd.toml"
        config.write_text(self._config(with_kubernetes=with_kubernetes))
        processes.start(self.process, [*self.inside, "containerd", "--config", config])
        processes.wait_until(self.process, lambda: succeeds(self._ctr("version")), timeout_seconds=30)

    @contextmanager
    def without_kubernetes(self, processes: ProcessTable) -> Iterator[None]:
        """Run it for the block only, rid of the containers of an earlier cluster. Raises NotReady."""
        self.start(processes, with_kubernetes=False)
        try:
            self.forget_containers()
            yield
        finally:
            processes.stop(self.process)

    def replicate(self, other: "Containerd") -> None:
        """Give `other` the same images by hard links; neither may run. Layers and blobs are never written again.

        Only the databases, which are, become copies.
        """
        run(["rm", "--recursive", "--force", other.root])
        other.root.parent.mkdir(parents=True, exist_ok=True)
        run(["cp", "--archive", "--link", self.root, other.root])
        for database in other.root.glob("*/*.db"):
            database.unlink()
            shutil.copy2(self.root / database.relative_to(other.root), database)

    def forget_containers(self) -> None:
        """Remove all containers and what they wrote; images and their unpacked layers stay."""
        for name in run(self._ctr("containers", "list", "--quiet")).split():
            run(self._ctr("containers", "remove", name))
        for line in run(self._ctr("snapshots", "list")).splitlines()[1:]:
            key, *_, kind = line.split()
            if kind == "Active":
                run(self._ctr("snapshots", "remove", key))

    def images(self) -> dict[str, str]:
        """All images in the store: name to digest."""
        rows = run(self._ctr("images", "list")).splitlines()[1:]
        return {name: digest for name, _, digest, *_ in map(str.split, rows)}

    def import_image(self, archive: Path) -> None:
        """Load every image of a tar archive (Docker's or the OCI's layout)."""
        run(self._ctr("images", "import", archive))

    @contextmanager
    def import_stream(self) -> Iterator[IO[bytes]]:
        """Load the image whose OCI archive the caller writes to the stream; it may lack layers that are unpacked here.

        Raises CommandFailed. Afterwards no compressed layer is kept: it would lie on the disk twice.
        """
        with pipe_into(self._ctr("images", "import", "-")) as stream:
            yield stream
        run(self._ctr("content", "prune", "references"))

    def unpacked_layers(self) -> set[str]:
        """Chain ids of all layers that are unpacked."""
        return {line.split()[0] for line in run(self._ctr("snapshots", "list")).splitlines()[1:]}

    def tag_image(self, name: str, other: str) -> None:
        """Give an image another name, taking it from whatever had it."""
        run(self._ctr("images", "tag", "--force", name, other))

    def remove_images(self, names: Iterable[str]) -> None:
        """Remove names, and with an image's last one the image.

        Kubernetes' plugin names each image by its id, too; such a name alone would keep it for good.
        """
        for name in names:
            run(self._ctr("images", "remove", name))
        images = self.images()
        ids = {name for name in images if name.startswith("sha256:")}
        wanted = {digest for name, digest in images.items() if name not in ids}
        for name in ids:
            if images[name] not in wanted:
                run(self._ctr("images", "remove", name))

    def _ctr(self, *words: str | Path) -> list[str | Path]:
        return ["ctr", "--address", self.socket, "--namespace", _NAMESPACE, *words]

    def _config(self, *, with_kubernetes: bool) -> str:
        cri = "io.containerd.grpc.v1.cri"
        disabled = "" if with_kubernetes else f'"{cri}"'
        return f"""\
version = 2
root = "{self.root}"
state = "{self.state / "run"}"
disabled_plugins = [{disabled}]

[grpc]
address = "{self.socket}"

[plugins."{cri}"]
sandbox_image = "{PAUSE_IMAGE}"
# Without the right to lower oom_score_adj (a container's root has none) no sandbox would start.
restrict_oom_score_adj = true
# Network namespaces lie in the state folder, where their leftovers are found.
netns_mounts_under_state_dir = true
# The local cluster's API is the node's only client.
disable_tcp_service = true

[plugins."{cri}".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{self.cni_config}"

[plugins."{cri}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."{cri}".containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{self.state / "runc"}"
"""
