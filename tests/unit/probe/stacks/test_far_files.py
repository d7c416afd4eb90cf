from __future__ import annotations

from dataclasses import replace

from every_case import every_case
from made_stacks import reading

from holdfast.probe.stacks.far_files import is_far, waits_for_storage
from holdfast.probe.stacks.frames import ON_DISK

MOUNTS = [("/", "overlay"), ("/data", "nfs4"), ("/data/local", "ext4"), ("/mnt/bucket", "fuse.s3fs"), ("/home", "btrfs")]


@every_case(
    ("file", "far"),
    [
        ("/data/train/13.png", True),
        ("/mnt/bucket/13.png", True),
        ("/data/local/13.png", False),
        ("/database/13.png", False),
        ("/home/a/13.png", False),
        ("/13.png", False),
    ],
)
def test_a_file_of_another_machine_is_known_by_what_is_mounted_above_it(file: str, far: bool) -> None:
    assert is_far(file, MOUNTS) is far


def test_a_container_whose_own_root_looks_like_a_network_is_not_waited_for() -> None:
    assert not is_far("/srv/13.png", [("/", "fuse.fuse-overlayfs")])


def test_a_process_that_the_system_says_waits_for_a_disk_waits_for_storage() -> None:
    assert waits_for_storage(replace(reading(0), state=ON_DISK))
    assert not waits_for_storage(reading(0))
