"""Which layers travel, and what containerd is told about them."""

import hashlib
import json

from e2e.images.transfer import chain_ids, digest_of, make_index, missing_layers

DIFF_IDS = ["sha256:a", "sha256:b", "sha256:c"]
LAYERS = [{"digest": "sha256:1"}, {"digest": "sha256:2"}, {"digest": "sha256:3"}]


def test_a_chain_id_stands_for_a_layer_and_all_below_it() -> None:
    second = "sha256:" + hashlib.sha256(b"sha256:a sha256:b").hexdigest()
    third = "sha256:" + hashlib.sha256(f"{second} sha256:c".encode()).hexdigest()
    assert chain_ids(DIFF_IDS) == ["sha256:a", second, third]
    assert chain_ids([]) == []


def test_only_layers_that_are_not_unpacked_travel() -> None:
    chains = chain_ids(DIFF_IDS)
    assert missing_layers(LAYERS, DIFF_IDS, []) == LAYERS
    assert missing_layers(LAYERS, DIFF_IDS, chains[:2]) == LAYERS[2:]
    assert missing_layers(LAYERS, DIFF_IDS, chains) == []


def test_the_same_layer_over_another_base_travels() -> None:
    elsewhere = chain_ids(["sha256:z", "sha256:b"])
    assert missing_layers(LAYERS, DIFF_IDS, ["sha256:a", *elsewhere]) == LAYERS[1:]


def test_the_index_names_the_image_and_its_manifest() -> None:
    (entry,) = json.loads(make_index(b"{}", "localhost/lorafleet/engine:dev"))["manifests"]
    assert entry["digest"] == digest_of(b"{}")
    assert entry["size"] == 2
    assert "localhost/lorafleet/engine:dev" in entry["annotations"].values()
