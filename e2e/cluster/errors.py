"""What can go wrong while building or running the local cluster; raised by every module here, printed by __main__."""

from collections.abc import Sequence


class ClusterError(Exception):
    """Any failure that the user should read as one message, without a traceback."""


class CommandFailed(ClusterError):
    """An external program ended with a non-zero status."""

    def __init__(self, command: Sequence[str], status: int, output: str) -> None:
        tail = "\n".join(output.strip().splitlines()[-20:])
        super().__init__(f"`{' '.join(command)}` ended with status {status}\n{tail}".rstrip())
        self.status = status


class ToolMissing(ClusterError):
    """A program that must already be on the machine (go, apt-get, openssl) isn't there."""


class DiskTooSmall(ClusterError):
    """The folder that would hold the caches has too little free space."""


class ClusterBusy(ClusterError):
    """Another run holds the machine's lock."""


class NotReady(ClusterError):
    """Something that was started did not become ready in time, or ended early."""


class AlreadyRunning(ClusterError):
    """A process of that name is already recorded and alive in the state folder."""
