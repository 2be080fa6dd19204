from pathlib import Path

import pytest

from lorafleet_operator.cli.manifests import ManifestError, choose_pool, read_manifests

POOL = """
apiVersion: lorafleet.io/v1alpha1
kind: LoraPool
metadata: {name: smol, namespace: demo}
spec: {baseModel: {name: smollm2-135m, source: {uri: "http://assets/smollm2"}}}
"""
ADAPTER = """
apiVersion: lorafleet.io/v1alpha1
kind: LoraAdapter
metadata: {name: pirate, namespace: team}
spec: {poolRef: {name: smol, namespace: demo}, source: {uri: "http://assets/pirate"}}
"""
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"


def write(folder: Path, *documents: str, name: str = "all.yaml") -> Path:
    path = folder / name
    path.write_text("---\n".join(documents))
    return path


def test_a_whole_folder_with_other_things_in_it(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path, POOL, OTHER)
    write(tmp_path / "deep", ADAPTER, name="adapter.yml")
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {tier: gold}}\n"
    write(tmp_path, namespace, name="namespace.yaml")
    (tmp_path / "README.md").write_text("not: [a manifest")
    found = read_manifests(tmp_path)
    pool, adapters, tenants = choose_pool(found, None)
    assert pool.meta.name == "smol"
    assert [each.meta.name for each in adapters] == ["pirate"]
    assert tenants == ()
    assert found.namespaces == {"team": {"tier": "gold"}, "demo": {}}


def test_a_list_as_kubectl_prints_it_and_what_the_cluster_knows(tmp_path: Path) -> None:
    indented = "\n".join(f"    {line}" for line in ADAPTER.strip().splitlines())
    document = f"apiVersion: v1\nkind: List\nitems:\n  -\n{indented}\n    status: {{rank: 8, bytes: 4711}}\n"
    found = read_manifests(write(tmp_path, POOL, document))
    (adapter,) = found.adapters
    assert found.known[adapter.meta.uid].bytes == 4711
    assert adapter.status.bytes is None


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([POOL.replace("source", "flavour: x, source")], r"all.yaml: LoraPool demo/smol: spec.baseModel.flavour: "),
        ([POOL, ADAPTER.replace("http", "ftp")], r"document 2: LoraAdapter team/pirate: spec.source.uri: "),
        ([ADAPTER.replace("spec:", "spek:")], r"LoraAdapter team/pirate: spec: "),
        ([POOL.replace("name: smol, ", "")], r"LoraPool: metadata.name is missing"),
        ([POOL, POOL], r"document 2: LoraPool demo/smol: the same object is also in .*document 1"),
        (["kind: [unclosed"], r"all.yaml: while parsing"),
    ],
)
def test_errors_name_file_object_and_field(tmp_path: Path, documents: list[str], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read_manifests(write(tmp_path, *documents))


def test_the_pool_must_be_clear(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no such file"):
        read_manifests(tmp_path / "absent")
    with pytest.raises(ManifestError, match="no LoraPool"):
        choose_pool(read_manifests(write(tmp_path, ADAPTER)), None)
    two = read_manifests(write(tmp_path, POOL, POOL.replace("smol,", "smol2,")))
    with pytest.raises(ManifestError, match="more than one such pool; choose one by --pool: demo/smol, demo/smol2"):
        choose_pool(two, None)
    with pytest.raises(ManifestError, match="no such pool"):
        choose_pool(two, "demo/smol3")
    assert choose_pool(two, "demo/smol2")[0].meta.name == "smol2"
    assert choose_pool(two, "smol")[0].meta.name == "smol"
