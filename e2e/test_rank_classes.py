"""Rank classes: adapters belong to the class of their verified rank; one that slows the others down is split off, and
what gets another rank moves. No request fails.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.assets import widen
from e2e.client import Client
from e2e.engines import POOL
from e2e.fleet import DEMO, Fleet, Object, adapter, holds
from e2e.ownpool import own_pool
from e2e.traffic import asking
from e2e.waiting import NotInTimeError, wait_until
from lorafleet_contracts.names import class_set

SMALL, LARGE = "classed", "wide"
"""An adapter of rank 8, after which the pool and the tenant of the long test are named, and the same at rank 256."""
RANK = 256
CLASS = class_set(RANK)
SERVER = "wide-assets"
SOURCES = {"allow": [{"prefix": f"http://{name}/"} for name in ("demo-assets", SERVER)]}
SPEC = {
    "sources": SOURCES,
    "replicas": {"min": 1, "max": 2, "redundancy": 0},
    "rankClasses": {"ceilings": [16, RANK], "splitAfter": "1s", "mergeAfter": "10m"},
    "slo": {"itl": "10s"},
    "promotion": {"enabled": False},
}
PATIENCE_SECONDS = 300.0
SWEEP = 0.85
"""A step of the sweep for an aim that a split would meet: the large rank adds more than half to a step of one core."""
SLOWEST_MILLISECONDS, QUICKEST_MILLISECONDS = 2000.0, 10.0


@pytest.fixture(scope="module")
def wide(fleet: Fleet, acme: Client) -> Iterator[None]:
    """A second server of the demo's assets, with the pirate's files once more, of a rank that steps take notice of."""
    demo = fleet.get("deployment", "demo-assets")
    assert demo
    pod, labels = demo["spec"]["template"]["spec"], {"app.kubernetes.io/name": SERVER}
    [server] = pod["containers"]
    mounted = {"volumeMounts": [{"name": "made", "mountPath": str(widen.ADAPTERS / LARGE)}]}
    command = ["python3", "-c", Path(widen.__file__).read_text(), "pirate", LARGE, str(RANK)]
    maker = {name: value for name, value in server.items() if name not in ("ports", "readinessProbe")}
    spec = pod | {
        "volumes": [{"name": "made", "emptyDir": {}}],
        "initContainers": [maker | mounted | {"name": "maker", "command": command}],
        "containers": [server | mounted],
    }
    meta = {"name": SERVER, "namespace": DEMO, "labels": labels}
    service = {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}
    fleet.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service},
    )
    try:
        fleet.kubectl.run("wait", "--for=condition=Ready", f"pod/{SERVER}", "-n", DEMO, "--timeout=120s")
        yield
    finally:
        fleet.delete("service", SERVER)
        fleet.delete("pod", SERVER)


def ranked(name: str, files: str, pool: str) -> Object:
    """An adapter of one of the two ranks."""
    found = adapter(name, poolRef={"name": pool})
    found["spec"]["source"] = {"uri": f"http://{SERVER}/adapters/{files}"}
    return found


def status(fleet: Fleet, name: str) -> Object:
    """What is said of an adapter."""
    found: Object = (fleet.get("loraadapter", name) or {}).get("status", {})
    return found


def verdict(fleet: Fleet) -> Object:
    """What is said of the classes of the long test's pool."""
    found: Object = (fleet.get("lorapool", SMALL) or {}).get("status", {}).get("rankClasses", {})
    return found


@pytest.fixture
def classed(fleet: Fleet, wide: None) -> Iterator[Fleet]:
    """The quickstart's pool with one class, which holds all that is there."""
    fleet.patch("lorapool", POOL, {"rankClasses": {"ceilings": [16], "split": "Never"}, "sources": SOURCES})
    try:
        yield fleet
    finally:
        fleet.delete("loraadapter", LARGE)
        fleet.patch("lorapool", POOL, {"rankClasses": None, "sources": {"allow": SOURCES["allow"][:1]}})


def test_a_rank_is_refused_or_classed_and_its_class_changes_with_the_version(classed: Fleet, acme: Client) -> None:
    with asking(acme) as seen:
        classed.apply(ranked(LARGE, LARGE, POOL))
        wait_until(lambda: holds(classed.get("loraadapter", LARGE), "Stalled"), seconds=60, what="the rank is refused")
        [told] = [each for each in status(classed, LARGE)["conditions"] if each["type"] == "Stalled"]
        assert told["reason"] == "RankAboveCeiling"
        assert f"it would need a class of {RANK} or more" in told["message"]
        classed.patch("lorapool", POOL, {"rankClasses": {"ceilings": [16, RANK], "split": "Never"}})
        wait_until(lambda: holds(classed.get("loraadapter", LARGE), "Ready"), seconds=60, what="its class is there")
        assert (status(classed, LARGE)["rank"], status(classed, LARGE)["rankClass"]) == (RANK, RANK)
        classed.apply(ranked(LARGE, "pirate", POOL))
        wait_until(lambda: status(classed, LARGE)["rankClass"] == 16, seconds=60, what="the small version serves")
        wait_until(lambda: holds(classed.get("loraadapter", LARGE), "Ready"), seconds=30, what="it is Ready")
        assert status(classed, "pirate")["rankClass"] == 16
    assert seen.right > 0
    assert not seen.wrong


@pytest.fixture
def client(fleet: Fleet, gateway: str, wide: None) -> Iterator[Client]:
    """A patient client of a pool of one engine with a small and a large adapter."""
    with own_pool(fleet, gateway, SMALL, SPEC) as found:
        try:
            fleet.apply(ranked(LARGE, LARGE, SMALL))
            fleet.patch("tenant", SMALL, {"adapters": {"names": [SMALL, LARGE]}})
            fleet.wait_ready()
            yield replace(found, patience=PATIENCE_SECONDS)
        finally:
            fleet.delete("loraadapter", LARGE)


def split_off(fleet: Fleet) -> None:
    """Lower `slo.itl` until the forecast is above it on one set, and below it for the small class by itself."""
    milliseconds = SLOWEST_MILLISECONDS
    while milliseconds > QUICKEST_MILLISECONDS:
        fleet.patch("lorapool", SMALL, {"slo": {"itl": f"{milliseconds:.0f}ms"}})
        wait_until(lambda: holds(fleet.get("lorapool", SMALL), "Ready"), seconds=60, what="it has been judged by that")
        if verdict(fleet)["wanted"] == [RANK]:
            with suppress(NotInTimeError):
                wait_until(lambda: verdict(fleet)["split"] == [RANK], seconds=15, what="the class is split off")
                return
        milliseconds *= SWEEP
    raise AssertionError(f"no aim above {QUICKEST_MILLISECONDS} ms asks for a split: {verdict(fleet)}")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_class_is_split_off_what_gets_its_rank_follows_and_both_come_back_without_a_failed_request(
    fleet: Fleet, client: Client
) -> None:
    with asking(client, {SMALL: "pirate", LARGE: "pirate"}) as seen:
        wait_until(lambda: seen.right >= 8, seconds=120, what="the operator has seen steps")
        split_off(fleet)
        assert verdict(fleet)["reason"] == "SplitPays", verdict(fleet)
        wait_until(lambda: status(fleet, LARGE).get("set") == CLASS, seconds=300, what="the large adapter has moved")
        assert "set" not in status(fleet, SMALL)
        [own] = [each for each in (fleet.get("lorapool", SMALL) or {})["status"]["sets"] if each["name"] == CLASS]
        assert (own["kind"], own["ceiling"], own["ready"]) == ("RankClass", RANK, 1)
        answers = seen.right
        wait_until(lambda: seen.right > answers + 4, seconds=120, what="both are answered")

        fleet.apply(ranked(SMALL, LARGE, SMALL))
        wait_until(lambda: status(fleet, SMALL).get("set") == CLASS, seconds=180, what="the wider version has moved")
        assert status(fleet, SMALL)["rankClass"] == RANK
        answers = seen.right
        wait_until(lambda: seen.right > answers + 4, seconds=120, what="both are answered")

        fleet.patch("lorapool", SMALL, {"slo": {"itl": "10s"}, "rankClasses": {"mergeAfter": "1s"}})
        wait_until(lambda: not verdict(fleet).get("split"), seconds=60, what="the class is merged back")
        there = (SMALL, LARGE)
        wait_until(lambda: not any(status(fleet, name).get("set") for name in there), seconds=180, what="both are back")
        assert [status(fleet, name)["rankClass"] for name in there] == [RANK, RANK]
        wait_until(
            lambda: not fleet.get("statefulset", f"{SMALL}-{CLASS}"), seconds=120, what="the class's set has ended"
        )
        answers = seen.right
        wait_until(lambda: seen.right > answers + 4, seconds=120, what="both are answered")
    assert not seen.wrong
