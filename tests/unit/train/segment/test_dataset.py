"""Images and masks: split, matched, resized and augmented together, the same for every worker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[3] / "trainings"))
from loop_segment import draw_discs

from holdfast.errors import UsageError
from holdfast.train.detect.augment import Augmentation
from holdfast.train.segment.dataset import SegmentationData
from holdfast.train.segment.masks import open_masks, split_up

CLASSES = (("images", "cats"), ("masks", "dogs"))


def data_of(folder: Path, *, imgsz: int = 64, **more: Any) -> SegmentationData:
    return SegmentationData(split_up(open_masks(folder))[0], imgsz, **more)


def test_without_a_split_a_fifth_is_held_out_always_the_same(tmp_path: Path) -> None:
    draw_discs(tmp_path, 15)
    train, val, words = split_up(open_masks(tmp_path))
    assert (len(train), len(val)) == (12, 3)
    assert "3 of 15 images are held out" in words
    again = split_up(open_masks(tmp_path))[1]
    assert [one.file for one in val] == [one.file for one in again]
    assert not {one.file for one in train} & {one.file for one in val}


def test_splits_of_the_data_are_kept_and_test_images_are_never_used(tmp_path: Path) -> None:
    draw_discs(tmp_path / "made", 6)
    for split, numbers in {"train": (0, 1, 2), "val": (3, 4), "test": (5,)}.items():
        for kind in ("images", "masks"):
            (tmp_path / "set" / kind / split).mkdir(parents=True)
            for number in numbers:
                (tmp_path / "made" / kind / f"{number:02d}.png").rename(tmp_path / "set" / kind / split / f"{number:02d}.png")
    train, val, _ = split_up(open_masks(tmp_path / "set"))
    assert [one.file for one in train] == [f"images/train/0{number}.png" for number in (0, 1, 2)]
    assert [one.file for one in val] == [f"images/val/0{number}.png" for number in (3, 4)]


def test_an_image_without_a_mask_is_left_out_and_named(tmp_path: Path) -> None:
    draw_discs(tmp_path, 8)
    (tmp_path / "masks" / "03.png").unlink()
    train, val, words = split_up(open_masks(tmp_path))
    assert len(train) + len(val) == 7
    assert "1 images without a mask" in words


def test_binary_masks_are_preferred_to_instances_and_instances_are_foreground(tmp_path: Path) -> None:
    draw_discs(tmp_path, 5)
    (tmp_path / "instances").mkdir()
    for path in (tmp_path / "masks").iterdir():
        Image.fromarray((np.asarray(Image.open(path)) > 0).astype(np.uint16) * 700).save(tmp_path / "instances" / path.name)
    binary = [data_of(tmp_path)[place]["mask"] for place in range(4)]
    assert "masks in masks/" in split_up(open_masks(tmp_path))[2]
    for path in (tmp_path / "masks").iterdir():
        path.unlink()
    (tmp_path / "masks").rmdir()
    assert all(torch.equal(data_of(tmp_path)[place]["mask"], binary[place]) for place in range(4))


@pytest.mark.parametrize("imgsz", [32, 64, 96])
def test_image_and_mask_stay_together_through_size_and_augmentation(tmp_path: Path, imgsz: int) -> None:
    """The discs are bright: what the mask marks must be brighter than the rest, also after every change."""
    strong = Augmentation(mosaic=0.0, degrees=180.0, scale=0.5, translate=0.2, fliplr=0.5, hsv_v=0.1, hsv_s=0.1)
    data = data_of(draw_discs(tmp_path, 8), imgsz=imgsz, augmentation=strong, flipud=0.5)
    for epoch in range(4):
        data.set_epoch(epoch)
        for place in range(len(data)):
            sample = data[place]
            image, mask = sample["image"].float().mean(0), sample["mask"].bool()
            assert image.shape == mask.shape == (imgsz, imgsz)
            if mask.sum() > 20:
                assert image[mask].mean() > image[~mask].mean() + 30
                assert (image[mask] < 100).float().mean() < 0.2, "the mask covers the discs, not what is beside them"


def test_a_sample_depends_on_seed_epoch_and_index_only(tmp_path: Path) -> None:
    folder = draw_discs(tmp_path, 6)
    one, other = (data_of(folder, augmentation=Augmentation(mosaic=0.0), seed=5) for _ in range(2))
    for data in (one, other):
        data.set_epoch(3)
    samples = [one[place]["image"] for place in range(len(one))]
    assert all(torch.equal(other[place]["image"], samples[place]) for place in reversed(range(len(one))))
    one.set_epoch(4)
    assert not torch.equal(one[0]["image"], samples[0])
    kept = data_of(folder, augmentation=Augmentation(mosaic=0.0), seed=5, keep=True)
    kept.set_epoch(3)
    assert all(torch.equal(kept[place]["image"], samples[place]) for place in range(len(kept))), "--cache ram changes nothing"


def test_an_image_that_its_camera_turned_fits_its_mask(tmp_path: Path) -> None:
    draw_discs(tmp_path, 4)
    pixels, exif = np.zeros((40, 20, 3), np.uint8), Image.Exif()
    pixels[:10] = 200  # the upper part of what is stored
    exif[0x0112] = 6  # to be turned clockwise: the right part of what is shown
    mask = np.zeros((20, 40), np.uint8)
    mask[:, 30:] = 255
    for number in range(4):
        (tmp_path / "images" / f"{number:02d}.png").unlink()
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number:02d}.jpg", exif=exif, quality=95)
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number:02d}.png")
    sample = data_of(tmp_path)[0]
    assert sample["image"].float().mean(0)[sample["mask"].bool()].mean() > 150


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: (folder / "classes.txt").write_text("sky\nroad\ncar\n"), "lists 3 classes"),
        (lambda folder: [(folder / kind).rename(folder / name) for kind, name in CLASSES], "holds no images with masks"),
    ],
)
def test_data_that_does_not_fit_is_an_error_in_words(tmp_path: Path, change: Any, problem: str) -> None:
    change(draw_discs(tmp_path, 5))
    with pytest.raises(UsageError, match=problem):
        open_masks(tmp_path)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    data = data_of(draw_discs(tmp_path, 5))
    (tmp_path / data.images[0].file).write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    with pytest.raises(UsageError, match=r"images/\d\d.png or its mask cannot be read"):
        data[0]
