"""Short ways to write records in tables of tests."""

from typing import Any

from lorafleet_contracts.keys import KeyName, format_key, key_digest
from lorafleet_contracts.resources.pool import AllowedNamespaces
from lorafleet_contracts.resources.schema import LabelSelector
from lorafleet_contracts.resources.tenancy import Tenancy
from lorafleet_gateway.core.records import Adapter, Pool, Replica, Slice, StoredKey, Tenant
from lorafleet_gateway.core.table import Records, Table, build_table

POOL = ("serving", "smol")
DIGEST = "sha256:" + "a" * 64
ALL = LabelSelector()


def make_pool(**fields: Any) -> Pool:
    """A pool that admits everybody."""
    defaults = {
        "key": POOL,
        "uid": "pool-uid",
        "created": 5,
        "base": "base-model",
        "aliases": frozenset({"base"}),
        "allowed": AllowedNamespaces.model_validate({"from": "All"}),
        "window": 8192,
        "tenancy": Tenancy(),
    }
    return Pool(**{**defaults, **fields})


def make_adapter(namespace: str, name: str, **fields: Any) -> Adapter:
    """An adapter that serves."""
    defaults = {
        "key": (namespace, name),
        "uid": f"{namespace}-{name}",
        "created": 10,
        "pool": POOL,
        "model": name,
        "digest": DIGEST,
        "labels": (),
        "shared_with": None,
    }
    return Adapter(**{**defaults, **fields})


def make_tenant(namespace: str, *names: str, **fields: Any) -> Tenant:
    """A tenant `t` that may call the adapters of these names."""
    defaults = {
        "key": (namespace, "t"),
        "pool": POOL,
        "selector": None,
        "names": frozenset(names),
        "base": False,
        "keys": (),
    }
    return Tenant(**{**defaults, **fields})


def make_key(
    namespace: str, tenant: str, number: str, expires: float | None = None
) -> tuple[str, tuple[str, StoredKey]]:
    """A key and its entry."""
    key = format_key(KeyName(namespace, tenant, number), namespace.encode().ljust(32))
    return key, (number, StoredKey(key_digest(key), expires))


def make_replica(number: int) -> Replica:
    """A replica by number."""
    return Replica(f"10.0.0.{number}:8000", f"10.0.0.{number}:8001")


def make_slice(*ready: int, waiting: tuple[int, ...] = (), **fields: Any) -> Slice:
    """A slice of the shared set."""
    defaults = {"pool": POOL, "set": "shared"}
    replicas = (tuple(map(make_replica, ready)), tuple(map(make_replica, waiting)))
    return Slice(**{**defaults, "ready": replicas[0], "waiting": replicas[1], **fields})


def make_table(*found: Pool | Adapter | Tenant, slices: tuple[Slice, ...] = (), **namespaces: dict[str, str]) -> Table:
    """A table of these records; keyword arguments are namespaces' labels."""
    pools = [each for each in found if isinstance(each, Pool)] or [make_pool()]
    return build_table(
        Records(
            pools={each.key: each for each in pools},
            adapters={each.key: each for each in found if isinstance(each, Adapter)},
            tenants={each.key: each for each in found if isinstance(each, Tenant)},
            namespaces=namespaces,
            slices={("serving", f"s{number}"): each for number, each in enumerate(slices)},
        )
    )
