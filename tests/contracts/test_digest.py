import json
from pathlib import Path

import pytest

from lorafleet_contracts.digest import (
    IncompleteFolderError,
    adapter_files,
    base_files,
    canonical_digest,
    folder_digest,
    weight_files,
)


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_known_digest() -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert canonical_digest({"b": empty, "a": empty}) == canonical_digest({"a": empty, "b": empty})
    assert canonical_digest({"a": empty}) == "sha256:fba1930570cf2d33a2a05ff43a4fea532382611f43876988fc9c31fd9ce102d1"


def test_only_files_that_load_count(tmp_path: Path) -> None:
    write(tmp_path, adapter_config__json="{}", adapter_model__safetensors="w")
    before = folder_digest(tmp_path, adapter_files(tmp_path))
    write(tmp_path, README__md="hello", optimizer__pt="x")
    assert folder_digest(tmp_path, adapter_files(tmp_path)) == before
    write(tmp_path, chat_template__jinja="{{ messages }}")
    assert folder_digest(tmp_path, adapter_files(tmp_path)) != before


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_changed_byte_changes_the_digest(tmp_path: Path, name: str) -> None:
    write(tmp_path, adapter_config__json="{}", adapter_model__safetensors="w")
    before = folder_digest(tmp_path, adapter_files(tmp_path))
    (tmp_path / name).write_text("[]")
    assert folder_digest(tmp_path, adapter_files(tmp_path)) != before


def test_shards_count_with_their_index(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "adapter-1.safetensors", "b": "adapter-2.safetensors"}})
    write(tmp_path, adapter_config__json="{}", adapter_model__safetensors__index__json=index)
    assert adapter_files(tmp_path) == [
        "adapter_config.json",
        "adapter_model.safetensors.index.json",
        "adapter-1.safetensors",
        "adapter-2.safetensors",
    ]


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"[]",
        b'{"weight_map": 3}',
        b'{"weight_map": {"a": "../x.safetensors"}}',
        b'{"weight_map": {"a": "w.bin"}}',
        b'{"weight_map": {"a": 1}}',
    ],
)
def test_a_hostile_index_is_refused(index: bytes) -> None:
    with pytest.raises(IncompleteFolderError):
        weight_files(index)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(IncompleteFolderError, match=r"adapter_config\.json is missing"):
        adapter_files(tmp_path)
    write(tmp_path, adapter_config__json="{}", adapter_model__bin="pickle")
    with pytest.raises(IncompleteFolderError, match="never pickles"):
        adapter_files(tmp_path)
    with pytest.raises(IncompleteFolderError, match=r"config\.json is missing"):
        base_files(tmp_path)


def test_a_base_counts_its_tokenizer(tmp_path: Path) -> None:
    write(tmp_path, config__json="{}", model__safetensors="w", tokenizer__json="{}")
    assert base_files(tmp_path) == ["config.json", "model.safetensors", "tokenizer.json"]
