"""buildah with a storage of its own in the cache; the only place that knows buildah's flags. Used by build and base."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import run, succeeds
from e2e.cluster.leftovers import unmount_all_under
from e2e.cluster.processes import MARK, ProcessTable

_CERTIFICATES = Path("/etc/ssl/certs")


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One `buildah bud`: a Dockerfile, its context and what it is given."""

    image: str
    dockerfile: Path
    context: Path
    arguments: Mapping[str, str]
    extra_contexts: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class ImageStore:
    """Images and their layers in one folder; `logs` gets what the builds print."""

    folder: Path
    logs: Path

    @property
    def mark(self) -> dict[str, str]:
        """The environment by which clear_interrupted finds the programs of a killed run."""
        return {MARK: str(self.folder)}

    def clear_interrupted(self) -> None:
        """End builds whose run was killed, and remove their containers, mounts and temporary files."""
        ProcessTable(self.folder).stop_all(grace_seconds=2.0)
        self._run("rm", "--all")
        unmount_all_under(self.folder)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(parents=True)

    def has(self, image: str) -> bool:
        """Whether the store holds an image of that name."""
        return succeeds(self._buildah("inspect", "--type", "image", image))

    def identify(self, image: str) -> str:
        """The image's id: changes with its content. Raises CommandFailed when there is none."""
        return str(json.loads(self._run("inspect", "--type", "image", image))["FromImageID"])

    def import_root(self, root: Path, image: str) -> None:
        """Make a root file system into an image of a single layer."""
        container = self._run("from", "scratch").strip()
        try:
            self._run("add", "--quiet", container, root, "/")
            self._run("commit", "--quiet", container, image)
        finally:
            self._run("rm", container)

    def build(self, request: BuildRequest, log: str) -> None:
        """Build an image; steps whose inputs are unchanged come from the store. Raises CommandFailed.

        The machine's certificates and pip's settings are mounted for the build's duration: no layer keeps them.
        """
        settings = self._scratch / "pip.conf"
        settings.touch(mode=0o600)
        settings.write_text(pip_settings(os.environ))
        arguments = [f"--build-arg={name}={value}" for name, value in request.arguments.items()]
        contexts = [f"--build-context={name}={folder}" for name, folder in request.extra_contexts.items()]
        mounts = [f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro", f"--volume={settings}:/etc/pip.conf:ro"]
        flags = ["--layers", "--pull-never", "--isolation=chroot", "--network=host", f"--tag={request.image}"]
        source = [f"--file={request.dockerfile}", str(request.context)]
        try:
            self._run("bud", *flags, *mounts, *arguments, *contexts, *source, log=self.logs / log)
        finally:
            settings.unlink()

    def push(self, image: str, destination: str) -> None:
        """Push to a registry; layers that it has already are skipped. One on this machine may do without TLS."""
        self._run("push", "--quiet", *tls_flags(destination), image, f"docker://{destination}")

    def push_plain(self, image: str, destination: str) -> None:
        """Push to a registry on this machine: over plain HTTP, and with the compression that costs the least time."""
        flags = ["--quiet", "--tls-verify=false", "--compression-format=zstd", "--compression-level=1"]
        self._run("push", *flags, image, f"docker://{destination}")

    def builds(self, repository: str) -> list[str]:
        """Full names of all images of `repository`, the newest first."""
        listing = self._run("images", "--format", "{{.Name}}:{{.Tag}}")
        return [name for name in listing.splitlines() if name.startswith(f"{repository}:")]

    def drop(self, image: str) -> None:
        """Remove an image, and the layers that no other one needs."""
        self._run("rmi", image)

    @property
    def _scratch(self) -> Path:
        return self.folder / "scratch"

    def _run(self, *words: str | Path, log: Path | None = None) -> str:
        """Run buildah, marked so that what a killed run leaves behind is found."""
        env = {**self.mark, "TMPDIR": str(self._scratch)}
        return run(["nice", *self._buildah(*words)], env=env, log=log)

    def _buildah(self, *words: str | Path) -> list[str | Path]:
        roots = [f"--root={self.folder / 'layers'}", f"--runroot={self.folder / 'run'}", "--storage-driver=overlay"]
        return ["buildah", *roots, *words]


def pip_settings(environment: Mapping[str, str]) -> str:
    """A pip.conf for use inside a build: the machine's certificates, and its index when it names one."""
    lines = ["[global]", f"cert = {_CERTIFICATES / 'ca-certificates.crt'}"]
    if index := environment.get("PIP_INDEX_URL"):
        lines.append(f"index-url = {index}")
    return "\n".join(lines) + "\n"


def tls_flags(destination: str) -> list[str]:
    """Flags for an image's destination: container engines trust a registry on the same machine without TLS, too."""
    host = destination.partition("/")[0].rpartition(":")[0] or destination.partition("/")[0]
    return ["--tls-verify=false"] if host in ("localhost", "[::1]") or host.startswith("127.") else []
