"""The roots that the gateway trusts engines by."""

import ssl
from pathlib import Path

import pytest

from lorafleet_gateway.shell.engine_roots import EngineRoots
from tests.support.authority import make_authority


def test_nothing_but_other_roots_replaces_roots(tmp_path: Path) -> None:
    told: list[str] = []
    roots = EngineRoots(told.append)
    with pytest.raises(ConnectionError, match="ConfigMap lorafleet-engine-ca"):
        roots.context()
    first, second = (make_authority(tmp_path / name).bundle for name in ("one", "two"))
    roots.use(first)
    before = roots.context()
    for unusable in (None, "", " \n", "no certificate", "\u00e9"):
        roots.use(unusable)
        assert roots.context() is before
    roots.use(first + second)
    assert told == [first, first + second]
    context = roots.context()
    assert len(context.get_ca_certs()) == 2
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
