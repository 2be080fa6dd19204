"""The objects of a pool, compared with golden files. LORAFLEET_REGOLD=1 rewrites the files; then read the diff."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from lorafleet_contracts.resources.pool import LoraPoolSpec
from lorafleet_operator.core.manifests.disruption import build_disruption_budget
from lorafleet_operator.core.manifests.engine import build_stateful_set, resolve_device
from lorafleet_operator.core.manifests.identity import set_name
from lorafleet_operator.core.manifests.policy import build_network_policy
from lorafleet_operator.core.manifests.quantities import parse_bytes
from lorafleet_operator.core.manifests.service import build_service
from lorafleet_operator.core.manifests.tokens import build_tokens
from lorafleet_operator.core.sets import EngineSet, Merge
from lorafleet_operator.core.snapshot import EngineDefaults, Neighbours
from tests.support.fleet import TOKENS, make_meta, make_pool

GOLDEN = Path(__file__).parent / "golden"
DEFAULTS = EngineDefaults("registry.test/lorafleet-engine:1")
GPU: dict[str, Any] = {
    "baseModel": {
        "name": "qwen2.5-7b",
        "aliases": ["qwen", "qwen7"],
        "source": {"uri": "pvc://models/qwen"},
        "digest": f"sha256:{'a' * 64}",
    },
    "replicas": {"min": 3},
    "engine": {
        "memory": {"hostCache": "64Gi", "diskCache": "1.5Ti", "gpuUtilizationPercent": 90},
        "pod": {
            "image": "registry.test/own:2",
            "imagePullSecrets": [{"name": "pull"}],
            "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "96Gi"}, "requests": {"cpu": "8"}},
            "nodeSelector": {"gpu": "h200"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "runtimeClassName": "nvidia",
            "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}}],
            "env": [
                {"name": "LORAFLEET_LOG_LEVEL", "value": "DEBUG"},
                {"name": "LORAFLEET_DRAIN_SECONDS", "value": "5"},
            ],
        },
    },
}


def spec_of(**spec: Any) -> LoraPoolSpec:
    """The spec of a test pool."""
    found = make_pool(**spec).spec
    assert found is not None
    return found


def shared(replicas: int) -> EngineSet:
    """The set that every pool has."""
    return EngineSet("shared", "Shared", replicas)


MERGED = EngineSet(
    "merged-0a1b2c3d",
    "Merged",
    1,
    tenant="team/acme",
    merged=Merge("http://assets/pirate", f"uid-1@sha256:{'b' * 64}", "team", "pirate"),
)
PRIVATE = EngineSet("private-0a1b2c3d", "Private", 1, tenant="team/acme")
SLICE: dict[str, Any] = {
    "dedicated": {
        "pod": {
            "resources": {"limits": {"nvidia.com/mig-3g.71gb": "1"}},
            "nodeSelector": {"slices": "yes"},
            "tolerations": [],
        }
    }
}
"""On tenants' own replicas a MIG slice of other nodes."""


@pytest.mark.parametrize(
    ("name", "manifest"),
    [
        ("statefulset-small", build_stateful_set(make_meta("smol"), spec_of(), DEFAULTS, shared(1))),
        ("statefulset-gpu", build_stateful_set(make_meta("qwen", "serving"), spec_of(**GPU), DEFAULTS, shared(3))),
        ("statefulset-merged", build_stateful_set(make_meta("smol"), spec_of(), DEFAULTS, MERGED)),
        ("statefulset-dedicated", build_stateful_set(make_meta("qwen"), spec_of(**GPU, **SLICE), DEFAULTS, PRIVATE)),
        ("service", build_service(make_meta("smol"), shared(1))),
        ("disruption", build_disruption_budget(make_meta("smol"), shared(1))),
        ("policy", build_network_policy(make_meta("smol"), Neighbours("fleet", "main", ("metrics", "ops")))),
        ("tokens", build_tokens(make_meta("smol"), TOKENS)),
    ],
)
def test_manifest(name: str, manifest: dict[str, Any]) -> None:
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("LORAFLEET_REGOLD"):
        path.write_text(yaml.safe_dump(manifest, sort_keys=False))
    assert yaml.safe_load(path.read_text()) == manifest


def test_the_sets_of_a_pool_share_no_name_and_no_pod() -> None:
    for build in (build_service, build_disruption_budget):
        one, other = build(make_meta("smol"), shared(1)), build(make_meta("smol"), MERGED)
        assert other["metadata"]["name"] == "smol-merged-0a1b2c3d"
        assert one["metadata"]["labels"]["lorafleet.io/set"] != other["metadata"]["labels"]["lorafleet.io/set"]
        assert "merged-0a1b2c3d" in str(other["spec"]["selector"])


def test_a_long_pools_sets_have_names_that_fit_the_labels_of_their_pods() -> None:
    pools = [f"{'p' * 39}{end}" for end in "ab"]
    names = {set_name(pool, engines) for pool in pools for engines in ("shared", "merged-0a1b2c3d", "private-0a1b2c3d")}
    assert len(names) == 6
    assert max(map(len, names)) <= 52


def test_without_monitoring_no_rule_admits_everybody() -> None:
    """An empty `from` would: NetworkPolicy reads it as anyone."""
    for rule in build_network_policy(make_meta("smol"), Neighbours("fleet", "main"))["spec"]["ingress"]:
        assert rule["from"]
        assert all("podSelector" in peer for peer in rule["from"])


@pytest.mark.parametrize(
    ("engine", "device"),
    [
        ({}, "cpu"),
        ({"device": "CUDA"}, "cuda"),
        ({"device": "CPU", "pod": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}, "cpu"),
        ({"pod": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}}, "cuda"),
        ({"pod": {"resources": {"requests": {"nvidia.com/gpu": "1"}}}}, "cpu"),
    ],
)
def test_auto_takes_the_gpu_that_the_pod_asks_for(engine: dict[str, Any], device: str) -> None:
    assert resolve_device(spec_of(engine=engine).engine) == device


@pytest.mark.parametrize(
    ("quantity", "expected"), [("10", 10), ("1k", 1000), ("1.5Gi", 1610612736), ("2Ti", 2 * 1024**4), ("0.5M", 500_000)]
)
def test_quantities(quantity: str, expected: int) -> None:
    assert parse_bytes(quantity) == expected


@pytest.mark.parametrize("quantity", ["", "Gi", "1Gib", "1iG", "x"])
def test_what_is_no_quantity(quantity: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|literal|Invalid"):
        parse_bytes(quantity)


@pytest.mark.parametrize("limits", [{}, {"nvidia.com/gpu": "2"}, {"memory": "96Gi"}])
def test_a_tensor_parallel_engine_gets_its_gpus(limits: dict[str, str]) -> None:
    engine = {"device": "CUDA", "tensorParallel": 2, "pod": {"resources": {"limits": limits}}}
    pod = build_stateful_set(make_meta("qwen"), spec_of(engine=engine), DEFAULTS, shared(1))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2", **limits}
    assert {"name": "LORAFLEET_TENSOR_PARALLEL", "value": "2"} in container["env"]
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"] if volume["name"] == "lorafleet-shm"]
    assert sizes == [str((1 << 30) + (128 << 20))]


@pytest.mark.parametrize(("chosen", "said"), [("PerTenant", None), ("Shared", "shared"), ("Off", "off")])
def test_prefix_cache_is_the_engines_default_unless_chosen(chosen: str, said: str | None) -> None:
    spec = spec_of(engine={"prefixCache": chosen})
    pod = build_stateful_set(make_meta("qwen"), spec, DEFAULTS, shared(1))["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert env.get("LORAFLEET_PREFIX_CACHE") == said
