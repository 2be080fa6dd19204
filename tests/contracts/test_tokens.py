from lorafleet_contracts.admin import PortName
from lorafleet_contracts.tokens import port_token, token_matches


def test_every_port_of_every_pool_has_its_own_token() -> None:
    tokens = {port_token(b"key", pool, port) for pool in ("uid-a", "uid-b") for port in PortName}
    assert len(tokens) == 6


def test_another_key_gives_another_token() -> None:
    assert port_token(b"old", "uid", PortName.ADMIN) != port_token(b"new", "uid", PortName.ADMIN)


def test_the_predecessor_still_opens_the_port() -> None:
    assert token_matches("old", ["new", "old"])
    assert not token_matches("older", ["new", "old"])
    assert not token_matches("", [])
