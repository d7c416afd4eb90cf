"""`--cache`: the same samples without decoding again; nothing stale is used, and what does not fit is refused before the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import made_data as made
import pytest
import torch

from holdfast.errors import DiskFull, UsageError
from holdfast.train.detect.augment import Augmentation
from holdfast.train.detect.boxes import open_boxes
from holdfast.train.detect.cache import ImageCache, cached_in_memory, cached_on_disk, plan_memory
from holdfast.train.detect.dataset import DetectionData, UnreadableImage, fill_caches

SIZE = 32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/images"


@pytest.fixture
def yolo(tmp_path: Path, folder: Path) -> Path:
    made.yolo(tmp_path / "set")
    return tmp_path / "set/data.yaml"


def split(path: Path, name: str = "train", **options: Any) -> DetectionData:
    return DetectionData(open_boxes(path), name, imgsz=SIZE, **options)


def noise(index: int) -> tuple[torch.Tensor, tuple[int, int]]:
    generator = torch.Generator().manual_seed(index)
    return torch.randint(0, 256, (3, SIZE, SIZE), generator=generator, dtype=torch.uint8), (10 + index, 20)


def never(index: int) -> tuple[torch.Tensor, tuple[int, int]]:
    raise AssertionError("it is loaded again")


def holds(cache: ImageCache, images: int) -> bool:
    return all(torch.equal(cache[one][0], noise(one)[0]) and cache[one][1] == noise(one)[1] for one in range(images))


@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_a_cached_sample_is_the_sample(yolo: Path, kind: Any) -> None:
    plain, cached = split(yolo, augmentation=Augmentation()), split(yolo, augmentation=Augmentation())
    steps: list[tuple[int, int]] = []
    cached.fill_cache(kind, lambda done, total: steps.append((done, total)))
    for image in (yolo.parent / "images/train").iterdir():
        image.unlink()
    assert steps == [(done, len(plain)) for done in range(1, len(plain) + 1)]
    made.yolo(yolo.parent)
    for index in (0, 5, 23):
        for key, value in plain[index].items():
            same = torch.equal(value, cached[index][key]) if isinstance(value, torch.Tensor) else value == cached[index][key]
            assert same, key


def test_what_is_changed_in_a_sample_is_not_changed_in_the_cache(folder: Path) -> None:
    cache = cached_in_memory(3, SIZE, noise)
    cache[1][0].zero_()
    assert holds(cache, 3)


def test_a_cache_on_disk_is_used_again_as_long_as_no_image_changed(yolo: Path) -> None:
    split(yolo).fill_cache("disk")
    broken = yolo.parent / "images/train/train05.jpg"
    before = broken.stat()
    broken.write_bytes(bytes(before.st_size))
    os.utime(broken, ns=(before.st_atime_ns, before.st_mtime_ns))  # as old and as large: not looked at
    split(yolo).fill_cache("disk")
    os.utime(broken)
    with pytest.raises(UnreadableImage, match=r"train05\.jpg"):
        split(yolo).fill_cache("disk")


def test_another_image_size_or_split_has_a_cache_of_its_own(yolo: Path, folder: Path) -> None:
    data = open_boxes(yolo)
    fill_caches([DetectionData(data, "train", imgsz=SIZE), DetectionData(data, "val", imgsz=SIZE)], "disk")
    larger = DetectionData(data, "train", imgsz=64)
    larger.fill_cache("disk")
    assert larger[0]["image"].shape == (3, 64, 64)
    assert len([file for file in folder.iterdir() if file.suffix != ".lock"]) == 3


def test_a_file_that_is_cut_short_is_made_anew(folder: Path) -> None:
    cached_on_disk("one", "a" * 32, 4, SIZE, noise)
    assert holds(cached_on_disk("one", "a" * 32, 4, SIZE, never), 4)
    os.truncate(folder / "one", (folder / "one").stat().st_size - 1)
    assert holds(cached_on_disk("one", "a" * 32, 4, SIZE, noise), 4)
    assert holds(cached_on_disk("one", "b" * 32, 5, SIZE, noise), 5), "another stamp, one image more"


def test_a_run_that_still_uses_the_old_images_keeps_them(folder: Path) -> None:
    old = cached_on_disk("one", "a" * 32, 4, SIZE, noise)
    cached_on_disk("one", "b" * 32, 2, SIZE, lambda index: noise(index + 50))
    assert holds(old, 4)


def test_a_failed_fill_leaves_nothing_that_looks_like_a_cache(folder: Path) -> None:
    def fails(index: int) -> Any:
        if index == 2:
            raise UnreadableImage("a.jpg cannot be read.", fix="replace it")
        return noise(index)

    with pytest.raises(UnreadableImage):
        cached_on_disk("one", "a" * 32, 4, SIZE, fails)
    assert [file.name for file in folder.iterdir()] == ["one.lock"]


def test_several_ranks_share_one_file_and_one_of_them_fills_it(folder: Path) -> None:
    script = (
        "from holdfast.train.detect.cache import cached_on_disk\n"
        "import torch\n"
        "loaded = []\n"
        "def load(index):\n"
        "    loaded.append(index)\n"
        "    return torch.full((3, 32, 32), index, dtype=torch.uint8), (1, 2)\n"
        "cache = cached_on_disk('one', 'a' * 32, 200, 32, load)\n"
        "assert int(cache[77][0].max()) == 77\n"
        "print(len(loaded))\n"
    )
    ranks = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(rank.communicate()[0].strip() for rank in ranks) == ["0", "200"]


def test_images_that_do_not_fit_into_memory_are_refused_with_both_numbers_and_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    plan_memory(5_000, 640, available=8 * gib)
    with pytest.raises(UsageError) as caught:
        plan_memory(10_000, 640, available=8 * gib)
    assert "needs 11.4 GiB" in caught.value.problem and "only 8 GiB" in caught.value.problem
    assert caught.value.fix == "--cache disk"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"needs 11.4 GiB"):
        plan_memory(5_000, 640, available=8 * gib)


def test_more_images_than_this_machine_has_memory_for_are_refused_before_one_is_loaded() -> None:
    with pytest.raises(UsageError, match="--cache ram needs"):
        cached_in_memory(100_000_000, 640, never)


def test_a_full_disk_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    monkeypatch.setenv("HOLDFAST_CACHE", str(small))

    def grows(index: int) -> Any:
        (small / "other").write_bytes(bytes(500_000))  # another program fills the disk meanwhile
        return noise(index)

    try:
        with pytest.raises(DiskFull, match=r"needs 2\.94 MiB, but only") as caught:
            cached_on_disk("one", "a" * 32, 1000, SIZE, never)
        assert "HOLDFAST_CACHE" in caught.value.fix and "--cache false" in caught.value.fix
        with pytest.raises(DiskFull, match="No space left"):
            cached_on_disk("one", "a" * 32, 250, SIZE, grows)
        assert not (small / "images/one").exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)
