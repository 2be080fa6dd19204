"""The installation's serving and state keys, as mounted from a Secret. Called by the picker and the state polls."""

from pathlib import Path

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.tokens import port_token


class PortKeys:
    """Derives the pools' port tokens; reads a key file again when it changes (Secrets rotate under a running pod)."""

    def __init__(self, folder: Path) -> None:
        self._paths = {port: folder / port.value for port in PortName}
        self._stamps: dict[PortName, tuple[int, int]] = {}
        self._keys: dict[PortName, bytes] = {}
        self._tokens: dict[tuple[PortName, str], str] = {}

    def token(self, port: PortName, pool_uid: str) -> str:
        """The current token of one port of one pool. Raises OSError when its key is not mounted."""
        self._refresh(port)
        found = self._tokens.get((port, pool_uid))
        if found is None:
            found = self._tokens[port, pool_uid] = port_token(self._keys[port], pool_uid, port)
        return found

    def _refresh(self, port: PortName) -> None:
        path = self._paths[port]
        status = path.stat()
        stamp = (status.st_ino, status.st_mtime_ns)
        if self._stamps.get(port) != stamp:
            self._keys[port] = path.read_bytes().strip()
            self._tokens = {key: token for key, token in self._tokens.items() if key[0] is not port}
            self._stamps[port] = stamp
