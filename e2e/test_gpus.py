"""Scheduling by `nvidia.com/gpu`: a pool that asks for more than a node has says so, and runs once it asks for less.

The nodes of the local cluster claim GPUs that they haven't, so the engine computes on the CPU.
"""

import json
from collections.abc import Iterator

import pytest

from e2e.client import Client
from e2e.fleet import DEMO, RESTRICTED, Fleet, Object, condition, holds
from e2e.waiting import wait_until

GPUS = "lorafleet-e2e-gpus"
POOL = "wide"


def resources(gpus: int) -> Object:
    return {
        "requests": {"cpu": "100m", "memory": "1Gi"},
        "limits": {"memory": "3Gi", "nvidia.com/gpu": str(gpus)},
    }


def pool(gpus: int) -> Object:
    """A pool of one replica that asks for so many GPUs."""
    engine = {
        "device": "CPU",
        "dtype": "float32",
        "maxModelLen": 512,
        "memory": {"hostCache": "256Mi", "diskCache": "2Gi"},
        "pod": {"resources": resources(gpus)},
    }
    base = {"name": "smollm2-135m", "source": {"uri": f"http://demo-assets.{DEMO}/smollm2"}}
    return {
        "apiVersion": "lorafleet.io/v1alpha1",
        "kind": "LoraPool",
        "metadata": {"name": POOL, "namespace": GPUS},
        "spec": {
            "baseModel": base,
            "engine": engine,
            "sources": {"allow": [{"prefix": f"http://demo-assets.{DEMO}/", "private": True}]},
        },
    }


@pytest.fixture
def most(fleet: Fleet, acme: Client) -> Iterator[int]:
    """As many GPUs as the largest node has, in a namespace that admits restricted pods only."""
    nodes = json.loads(fleet.kubectl.run("get", "nodes", "-o", "json"))["items"]
    counts = [int(node["status"]["allocatable"].get("nvidia.com/gpu", 0)) for node in nodes]
    assert max(counts) > 0, "no node has nvidia.com/gpu"
    fleet.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": GPUS, "labels": RESTRICTED}})
    yield max(counts)
    fleet.kubectl.run("delete", "namespace", GPUS, "--timeout=120s")


def test_too_many_gpus_are_named_and_fewer_run(fleet: Fleet, most: int) -> None:
    fleet.apply(pool(most + 1))
    wait_until(lambda: holds(fleet.get("lorapool", POOL, GPUS), "Stalled"), seconds=30, what="the pool Stalled")
    message = condition(fleet.get("lorapool", POOL, GPUS), "Stalled")["message"]
    assert "nvidia.com/gpu" in message, message
    fleet.apply(pool(most))
    wait_until(lambda: holds(fleet.get("lorapool", POOL, GPUS), "Ready"), seconds=180, what="the pool Ready")
