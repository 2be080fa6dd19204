"""A second node's image store: the first's files, but databases of its own."""

from pathlib import Path

from e2e.cluster.containerd import Containerd


def test_a_replica_shares_layers_and_blobs_and_nothing_that_is_written(tmp_path: Path) -> None:
    layer, database = (
        "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/lib",
        "io.containerd.metadata.v1.bolt/meta.db",
    )
    first, second = (Containerd(tmp_path / name, tmp_path / "run", tmp_path / "cni") for name in ("first", "second"))
    for name in (layer, database):
        (first.root / name).parent.mkdir(parents=True)
        (first.root / name).write_text("old")
    (second.root / "rest").mkdir(parents=True)
    first.replicate(second)
    assert (second.root / layer).samefile(first.root / layer)
    assert not (second.root / "rest").exists()
    (second.root / database).write_text("new")
    assert (first.root / database).read_text() == "old"
