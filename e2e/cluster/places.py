"""The cluster's two nodes: what each is called and where it lives on the machine. Nothing here does anything.

The first node is the machine's own network; the second has a network namespace of its own, so that its pods, rules and
failures are its own.
"""

from dataclasses import dataclass
from pathlib import Path

POD_RANGE = "10.244.0.0/16"
_NETWORK_NAMESPACES = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class Place:
    """One node: its number from 1 on; `namespace` is the name of its network namespace, "" for the machine's own."""

    number: int
    name: str
    namespace: str = ""

    @property
    def address(self) -> str:
        """The node's address on the link between the nodes."""
        return f"10.250.0.{self.number}"

    @property
    def pod_range(self) -> str:
        """The addresses of its pods."""
        return f"10.244.{self.number - 1}.0/24"

    @property
    def namespace_file(self) -> Path:
        """Where its network namespace is mounted. Meaningless for the machine's own."""
        return _NETWORK_NAMESPACES / self.namespace

    @property
    def inside(self) -> list[str]:
        """Words that, put before a command, run it in the node's network.

        Not `ip netns exec`: that mounts /sys anew and hides the control groups.
        """
        return ["nsenter", f"--net={self.namespace_file}", "--"] if self.namespace else []

    @property
    def group(self) -> str:
        """Its pods' control group below the cluster's."""
        return self.name

    def process(self, program: str) -> str:
        """What a program of this node is called in the table of processes, and its log."""
        return program if self.number == 1 else f"{program}-{self.number}"


FIRST = Place(1, "lorafleet")
SECOND = Place(2, "lorafleet-2", "lorafleet-2")
PLACES = (FIRST, SECOND)
