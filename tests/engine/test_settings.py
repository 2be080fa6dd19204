from pathlib import Path

import pytest

from lorafleet_engine.errors import SettingsError
from lorafleet_engine.main import read_arguments
from lorafleet_engine.settings import GIB, INTERPRETER_RESERVE_BYTES, load_settings

KEY = "uid-1@sha256:" + "a" * 64
BASE = {"LORAFLEET_BASE_NAME": "smol", "LORAFLEET_BASE_URI": "pvc://models/smol"}


def make_cgroup(folder: Path, memory: str = "max", cpu: str = "max 100000") -> Path:
    (folder / "memory.max").write_text(memory + "\n")
    (folder / "cpu.max").write_text(cpu + "\n")
    return folder


def test_two_variables_are_enough(tmp_path: Path) -> None:
    settings = load_settings(BASE, make_cgroup(tmp_path))

    assert (settings.base.name, settings.base.uri, settings.base.digest) == ("smol", "pvc://models/smol", "")
    assert (settings.ports.serving, settings.ports.state, settings.ports.admin) == (8000, 8001, 8002)


def test_memory_is_the_container_s_less_cache_and_interpreters(tmp_path: Path) -> None:
    settings = load_settings(BASE, make_cgroup(tmp_path, memory=str(3 * GIB)))

    assert settings.memory_bytes == 2 * GIB - INTERPRETER_RESERVE_BYTES


def test_a_gpu_engine_takes_a_percentage(tmp_path: Path) -> None:
    settings = load_settings(BASE | {"LORAFLEET_DEVICE": "cuda"}, make_cgroup(tmp_path, memory=str(GIB)))

    assert (settings.memory_bytes, settings.utilization_percent) == (None, 92)

    told = BASE | {"LORAFLEET_DEVICE": "cuda", "LORAFLEET_MEMORY_BYTES": str(3 * GIB)}
    assert load_settings(told, make_cgroup(tmp_path, memory=str(GIB))).memory_bytes == 3 * GIB


@pytest.mark.parametrize(("quota", "threads"), [("150000 100000", 1), ("max 100000", None), ("50000 100000", 1)])
def test_threads_follow_the_quota(tmp_path: Path, quota: str, threads: int | None) -> None:
    found = load_settings(BASE, make_cgroup(tmp_path, cpu=quota)).cpu_threads

    assert found == threads if threads else found >= 1


def test_limits_of_cgroup_v1(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{3 * GIB}\n")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")

    settings = load_settings(BASE, tmp_path)

    assert (settings.memory_bytes, settings.cpu_threads) == (2 * GIB - INTERPRETER_RESERVE_BYTES, 1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"LORAFLEET_BASE_NAME": ""}, "BASE_NAME"),
        ({"LORAFLEET_BASE_URI": ""}, "BASE_URI"),
        ({"LORAFLEET_DEVICE": "tpu"}, "DEVICE"),
        ({"LORAFLEET_DTYPE": "int8"}, "DTYPE"),
        ({"LORAFLEET_QUANTIZATION": "int8"}, "QUANTIZATION"),
        ({"LORAFLEET_TENSOR_PARALLEL": "0"}, "TENSOR_PARALLEL"),
        ({"LORAFLEET_QUANTIZATION": "int4"}, "QUANTIZATION int4 is refused"),
        ({"LORAFLEET_QUANTIZATION": "fp8"}, "QUANTIZATION fp8 needs"),
        ({"LORAFLEET_MERGE_ADAPTER": "file:///a"}, "MERGE_VERSION"),
        ({"LORAFLEET_MERGE_ADAPTER": "file:///a", "LORAFLEET_MERGE_VERSION": "uid@v1"}, "MERGE_VERSION"),
        (
            {"LORAFLEET_MERGE_ADAPTER": "a", "LORAFLEET_MERGE_VERSION": KEY, "LORAFLEET_MERGE_DISPLAY": "x"},
            "MERGE_DISPLAY",
        ),
        ({"LORAFLEET_STATE_PORT": "70000"}, "STATE_PORT"),
        ({"LORAFLEET_MAX_MODEL_LEN": "-5"}, "MAX_MODEL_LEN"),
        ({"LORAFLEET_HOST_CACHE_BYTES": "1Gi"}, "HOST_CACHE_BYTES"),
        ({"LORAFLEET_TARGET_MODULES": "q_proj,lm_head"}, "TARGET_MODULES"),
    ],
)
def test_a_wrong_value_names_its_variable(tmp_path: Path, change: dict[str, str], name: str) -> None:
    with pytest.raises(SettingsError, match=f"LORAFLEET_{name}"):
        load_settings(BASE | change, make_cgroup(tmp_path))


def test_a_container_too_small_for_its_cache_says_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="HOST_CACHE_BYTES"):
        load_settings(BASE, make_cgroup(tmp_path, memory=str(GIB)))


def test_fp8_where_it_is_faster(tmp_path: Path) -> None:
    chosen = {"LORAFLEET_QUANTIZATION": "FP8", "LORAFLEET_DEVICE": "cuda", "LORAFLEET_DTYPE": "bfloat16"}
    assert load_settings(BASE | chosen, make_cgroup(tmp_path)).quantization == "fp8"
    assert load_settings(BASE, make_cgroup(tmp_path)).quantization == "none"


def test_what_to_merge(tmp_path: Path) -> None:
    chosen = {"LORAFLEET_MERGE_ADAPTER": "pvc://models/a", "LORAFLEET_MERGE_VERSION": KEY}
    merge = load_settings(BASE | chosen, make_cgroup(tmp_path)).merge
    assert merge is not None
    assert (merge.uri, f"{merge.uid}@{merge.digest}") == ("pvc://models/a", KEY)
    assert (merge.namespace, merge.name) == ("merged", "uid-1")
    assert load_settings(BASE, make_cgroup(tmp_path)).merge is None


def test_the_command_line_says_the_same() -> None:
    given = ["--merge-adapter", "file:///a", "--merge-version", KEY, "--merge-display", "team/support"]
    assert read_arguments(given) == {
        "LORAFLEET_MERGE_ADAPTER": "file:///a",
        "LORAFLEET_MERGE_VERSION": KEY,
        "LORAFLEET_MERGE_DISPLAY": "team/support",
    }
    assert read_arguments([]) == {}
