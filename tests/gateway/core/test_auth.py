"""Whose key is it."""

import pytest

from lorafleet_gateway.core.auth import authenticate
from lorafleet_gateway.core.records import Tenant
from lorafleet_gateway.core.rejections import Rejection
from tests.gateway.core.records import make_key, make_tenant

GOOD, ENTRY = make_key("acme", "t", "k1", expires=1000.0)
OTHER, OTHER_ENTRY = make_key("globex", "t", "k1")
TENANTS: dict[tuple[str, str], Tenant] = {
    ("acme", "t"): make_tenant("acme", keys=(ENTRY,)),
    ("globex", "t"): make_tenant("globex", keys=(OTHER_ENTRY,)),
}


@pytest.mark.parametrize("header", [f"Bearer {GOOD}", f"bearer {GOOD}", f"BEARER  {GOOD} "])
def test_a_good_key_names_its_tenant(header: str) -> None:
    assert authenticate(header, TENANTS, now=999.9).key == ("acme", "t")


@pytest.mark.parametrize(
    ("header", "now"),
    [
        ("", 0),
        (GOOD, 0),
        (f"Basic {GOOD}", 0),
        ("Bearer ", 0),
        ("Bearer sk-something", 0),
        (f"Bearer {GOOD}x", 0),
        (f"Bearer {GOOD.replace('k1', 'k2')}", 0),
        (f"Bearer {GOOD.replace('_t_', '_u_')}", 0),
        (f"Bearer {GOOD.replace('acme', 'globex')}", 0),
        (f"Bearer {GOOD},Bearer {OTHER}", 0),
        (f"Bearer {GOOD}", 1000.0),
    ],
)
def test_everything_else_is_the_same_401(header: str, now: float) -> None:
    with pytest.raises(Rejection) as rejected:
        authenticate(header, TENANTS, now)
    assert (rejected.value.status, rejected.value.code) == (401, "invalid_api_key")
    assert GOOD not in rejected.value.message


def test_a_key_without_an_end_never_expires() -> None:
    assert authenticate(f"Bearer {OTHER}", TENANTS, now=1e12).key == ("globex", "t")
