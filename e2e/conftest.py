"""What every e2e test stands on: the fleet with the quickstart applied and Ready, two keys, and a client.

Modules may run in any order and alone: `quickstart` repairs whatever the module before left behind.
"""

from collections.abc import Iterator

import pytest

from e2e.client import Client
from e2e.fleet import NAMESPACE, Fleet, find_fleet, forwarded
from e2e.quickstart import Keys, apply_quickstart, create_keys


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a whole cluster, and may wait for engines to start."""
    for item in items:
        item.add_marker(pytest.mark.e2e)
        item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def fleet() -> Fleet:
    """The cluster; whether LoraFleet is installed is the module's business."""
    return find_fleet()


@pytest.fixture(scope="module")
def keys(fleet: Fleet) -> Keys:
    """Keys of the quickstart's two tenants; when this returns, all of the quickstart is Ready."""
    fleet.install()
    apply_quickstart(fleet)
    found = create_keys(fleet)
    fleet.wait_ready()
    return found


@pytest.fixture(scope="module")
def gateway(fleet: Fleet, keys: Keys) -> Iterator[str]:
    """The gateway's address, reachable from here."""
    with forwarded(fleet.kubectl, "svc/lorafleet-gateway", 8080, NAMESPACE) as address:
        yield address


@pytest.fixture(scope="module")
def acme(gateway: str, keys: Keys) -> Client:
    """A client of the tenant that may call pirate, shout and the base."""
    return Client(gateway, keys.acme)


@pytest.fixture(scope="module")
def globex(gateway: str, keys: Keys) -> Client:
    """A client of the tenant that may call support only."""
    return Client(gateway, keys.globex)
