"""Talks to the running cluster through the kubectl that was built with it; used by node, addons and __main__."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import run, succeeds

Manifest = dict[str, object]


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with a kubeconfig (None: the one of the environment); failures are CommandFailed, in kubectl's words."""

    program: Path
    kubeconfig: Path | None

    def run(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl and return what it printed."""
        return run(self._command(words), stdin=stdin)

    def succeeds(self, *words: str) -> bool:
        """Whether kubectl ends with status 0."""
        return succeeds(self._command(words))

    def apply(self, manifests: Sequence[Manifest]) -> None:
        """Apply `manifests` server-side."""
        listing = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.run("apply", "--server-side", "--filename", "-", stdin=json.dumps(listing))

    def _command(self, words: Sequence[str]) -> list[str | Path]:
        flags = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        return [self.program, *flags, *words]
