"""Tokens from mounted keys."""

from pathlib import Path

import pytest

from lorafleet_contracts.admin import PortName
from lorafleet_contracts.tokens import port_token
from lorafleet_gateway.shell.port_keys import PortKeys


def test_tokens_follow_a_rotated_key(tmp_path: Path) -> None:
    (tmp_path / "serving").write_bytes(b"first\n")
    keys = PortKeys(tmp_path)
    assert keys.token(PortName.SERVING, "uid") == port_token(b"first", "uid", PortName.SERVING)
    (tmp_path / "next").write_bytes(b"second")
    (tmp_path / "next").replace(tmp_path / "serving")
    assert keys.token(PortName.SERVING, "uid") == port_token(b"second", "uid", PortName.SERVING)
    assert keys.token(PortName.SERVING, "other") != keys.token(PortName.SERVING, "uid")


def test_a_key_that_is_not_mounted_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="state"):
        PortKeys(tmp_path).token(PortName.STATE, "uid")
