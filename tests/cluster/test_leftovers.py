"""Which mounts belong to a state folder."""

import socket
from pathlib import Path

from e2e.cluster.leftovers import mount_points_under, remove_dead_sockets

MOUNTINFO = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /srv/state/run/overlay rw - overlay overlay rw
31 30 0:26 / /srv/state/run/overlay/dev rw - tmpfs tmpfs rw
32 22 0:27 / /srv/state\040two/mnt rw - tmpfs tmpfs rw
33 22 0:28 / /srv/states rw - tmpfs tmpfs rw
"""


def test_only_those_below_the_folder_count_and_inner_ones_come_last() -> None:
    assert mount_points_under(Path("/srv/state"), MOUNTINFO) == ["/srv/state/run/overlay", "/srv/state/run/overlay/dev"]


def test_spaces_in_a_path_are_understood() -> None:
    assert mount_points_under(Path("/srv/state two"), MOUNTINFO) == ["/srv/state two/mnt"]


def test_a_socket_that_is_listened_on_stays(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as living:
        dead.bind(str(tmp_path / "dead"))
        living.bind(str(tmp_path / "living"))
        living.listen()
        remove_dead_sockets(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["living"]
