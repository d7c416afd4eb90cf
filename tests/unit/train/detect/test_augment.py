"""Boxes stay on their objects: every change is tried on a bright rectangle on dark ground, and the pixels are looked at."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.train.detect.augment import Augmentation, Picture, mirror, mosaic, random_matrix, recolour, warp

SIZE = 96
STILL = Augmentation(hsv_h=0, hsv_s=0, hsv_v=0, degrees=0, translate=0, scale=0, fliplr=0, mosaic=0)


def drawn(box: tuple[int, int, int, int] = (30, 40, 62, 56), colour: tuple[int, int, int] = (250, 250, 250)) -> Picture:
    image = torch.full((3, SIZE, SIZE), 20, dtype=torch.uint8)
    left, top, right, bottom = box
    image[:, top:bottom, left:right] = torch.tensor(colour, dtype=torch.uint8)[:, None, None]
    return Picture.whole(image, np.array([box], np.float32), np.array([1]))


def bright(picture: Picture, within: tuple[int, int, int, int] | None = None) -> tuple[int, int, int, int]:
    """The box around all pixels that are brighter than ground, fill and blends of them."""
    pixels = picture.image.float().amax(dim=0).numpy() > 180
    if within is not None:
        left, top, right, bottom = within
        outside = np.ones_like(pixels)
        outside[top:bottom, left:right] = False
        pixels &= ~outside
    down, across = np.nonzero(pixels)
    return int(across.min()), int(down.min()), int(across.max()) + 1, int(down.max()) + 1


def sure(picture: Picture, *, loose: float = 1.0) -> None:
    """The one box contains the bright pixels within a pixel, and is at most `loose` pixels larger on each side."""
    assert len(picture.boxes) == len(picture.classes) == 1
    room = np.array(bright(picture)) - picture.boxes[0]
    assert (room[:2] >= -1).all() and (room[2:] <= 1).all(), "bright pixels outside the box"
    assert (np.abs(room) <= loose).all(), "the box is larger than the object"


@pytest.mark.parametrize("seed", range(12))
def test_size_and_shift_keep_the_box_tight_around_the_object(seed: int) -> None:
    amount = Augmentation(degrees=0, scale=0.5, translate=0.1)
    matrix = random_matrix(amount, (3, SIZE, SIZE), SIZE, np.random.default_rng(seed))
    sure(warp(drawn(), matrix, SIZE))


@pytest.mark.parametrize("seed", range(12))
def test_a_turned_object_lies_in_its_box(seed: int) -> None:
    amount = Augmentation(degrees=30, scale=0.2, translate=0.1)
    matrix = random_matrix(amount, (3, SIZE, SIZE), SIZE, np.random.default_rng(seed))
    turned = warp(drawn(), matrix, SIZE)
    sure(turned, loose=2)  # its sharp corners blend into the ground
    assert turned.boxes[0].tolist() != drawn().boxes[0].tolist()


def test_it_turns_and_scales_around_the_middle_and_shifts_by_a_fraction_of_the_picture() -> None:
    amount = Augmentation(degrees=90, scale=0, translate=0)
    generator = np.random.default_rng(3)
    angle = math.radians(np.random.default_rng(3).uniform(-90, 90))
    matrix = random_matrix(amount, (3, SIZE, SIZE), SIZE, generator)
    assert np.allclose(matrix @ (SIZE / 2, SIZE / 2, 1), SIZE / 2)
    assert np.allclose(matrix[:, 0], (math.cos(angle), math.sin(angle)))
    moved = random_matrix(Augmentation(degrees=0, scale=0, translate=0.1), (3, SIZE, SIZE), SIZE, np.random.default_rng(0))
    assert 0 < np.abs(moved[:, 2]).max() <= 0.1 * SIZE


def test_pixels_are_mapped_as_pillow_maps_them() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (3, SIZE, SIZE), dtype=np.uint8))
    picture = Picture.whole(noise, np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    matrix = random_matrix(Augmentation(degrees=25), (3, SIZE, SIZE), 64, np.random.default_rng(1))
    back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
    whole = Image.fromarray(noise.permute(1, 2, 0).contiguous().numpy())
    same = whole.transform((64, 64), Image.Transform.AFFINE, tuple(back[:2].ravel()), Image.Resampling.BILINEAR)
    inside = np.asarray(Image.new("L", whole.size, 255).transform((64, 64), Image.Transform.AFFINE, tuple(back[:2].ravel()))) > 0
    inside = inside & np.roll(inside, 2, 0) & np.roll(inside, -2, 0) & np.roll(inside, 2, 1) & np.roll(inside, -2, 1)
    differ = np.abs(np.asarray(same).astype(int) - warp(picture, matrix, 64).image.permute(1, 2, 0).numpy())[inside]
    assert inside.mean() > 0.5 and differ.max() <= 1


def test_what_lies_outside_the_image_is_grey() -> None:
    matrix = np.array([[0.5, 0, SIZE / 4], [0, 0.5, SIZE / 4]])
    assert warp(drawn(), matrix, SIZE).image[:, 5, 5].tolist() == [114, 114, 114]


def test_a_mirror_image_has_its_box_on_the_other_side() -> None:
    mirrored = mirror(drawn((10, 40, 30, 56)))
    assert mirrored.boxes.tolist() == [[SIZE - 30, 40, SIZE - 10, 56]]
    sure(mirrored, loose=0)


@pytest.mark.parametrize("seed", range(8))
def test_each_object_of_a_mosaic_lies_in_its_box(seed: int) -> None:
    parts = [drawn((20 + 3 * place, 30, 40 + 3 * place, 50)) for place in range(4)]
    made = mosaic(parts, np.random.default_rng(seed))
    assert made.image.shape == (3, 2 * SIZE, 2 * SIZE)
    assert len(made.boxes) >= 1
    for box in made.boxes.round().astype(int).tolist():
        assert bright(made, tuple(box)) == tuple(box), "the box is filled with the object"
    assert (made.image.amax(dim=0) > 180).sum() <= sum((right - left) * (bottom - top) for left, top, right, bottom in made.boxes)


def test_a_mosaic_has_an_object_of_each_image_and_its_class() -> None:
    parts = [drawn((44, 44, 52, 52))._replace(classes=np.array([place])) for place in range(4)]
    made = mosaic(parts, np.random.default_rng(0))
    assert made.classes.tolist() == [0, 1, 2, 3]
    middles = (made.boxes[:, :2] + made.boxes[:, 2:]) / 2
    assert middles[0, 0] < middles[1, 0] and middles[0, 1] < middles[2, 1], "upper left, upper right, lower left, lower right"


def test_a_box_is_dropped_where_too_little_of_it_is_left() -> None:
    for kept, left in ((0, 0.05), (1, 0.2)):
        shift = SIZE - 30 - 32 * left  # the object is 32 pixels wide and begins at 30
        assert len(warp(drawn(), np.array([[1, 0, shift], [0, 1, 0.0]]), SIZE).boxes) == kept
    tiny = warp(drawn(), np.array([[0.05, 0, 0], [0, 0.05, 0.0]]), SIZE)
    assert len(tiny.boxes) == 0, "it is 1.6 pixels wide"


def test_what_a_mosaic_cut_off_and_what_the_next_change_cuts_off_are_counted_together() -> None:
    cut = drawn()._replace(boxes=np.array([[0, 40, 8, 56]], np.float32))  # 8 of 32 pixels
    assert len(warp(cut, np.eye(2, 3), SIZE).boxes) == 1
    assert len(warp(cut, np.array([[1, 0, -5], [0, 1, 0.0]]), SIZE).boxes) == 0, "3 of 32 pixels are left"


def test_colours_change_as_hue_saturation_and_brightness_say() -> None:
    picture = drawn(colour=(200, 100, 60))
    assert recolour(picture, 0, 1, 0.5).image[:, 45, 40].tolist() == [100, 50, 30]
    assert recolour(picture, 0, 0, 1).image[:, 45, 40].tolist() == [200, 200, 200], "no saturation: grey, as bright as before"
    assert recolour(picture, 0, 1.2, 1).image[:, 45, 40].tolist() == [200, 80, 32]
    assert recolour(picture, 2 * math.pi / 3, 1, 1).image[:, 45, 40].tolist() == [60, 200, 100], "a third of the circle"
    assert recolour(picture, 0, 1, 2).image[:, 45, 40].tolist() == [255, 200, 120], "white is the end"
    assert recolour(picture, 0, 1, 1) is picture


def test_nothing_asked_for_changes_nothing() -> None:
    picture = drawn()
    same = STILL.apply(picture, SIZE, np.random.default_rng(0))
    assert torch.equal(same.image, picture.image) and np.array_equal(same.boxes, picture.boxes)


@pytest.mark.parametrize("seed", range(8))
def test_all_changes_together_keep_objects_in_their_boxes_and_boxes_in_the_picture(seed: int) -> None:
    generator = np.random.default_rng(seed)
    parts = [drawn((20 + 5 * place, 30, 60, 60)) for place in range(4)]
    made = Augmentation(hsv_v=0.1).apply(mosaic(parts, generator), SIZE, generator)
    assert made.image.shape == (3, SIZE, SIZE) and made.image.dtype == torch.uint8
    assert (made.boxes >= 0).all() and (made.boxes <= SIZE).all()
    inside = np.zeros((SIZE, SIZE), bool)
    for left, top, right, bottom in made.boxes:
        inside[int(top) : math.ceil(bottom) + 1, int(left) : math.ceil(right) + 1] = True
    outside = (made.image.float().amax(dim=0).numpy() > 180) & ~inside
    assert outside.sum() <= 0.1 * 4 * 30 * 30, "only boxes that were dropped leave bright pixels"


def test_a_picture_without_boxes_passes_through_everything() -> None:
    empty = Picture.whole(drawn().image, np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    generator = np.random.default_rng(0)
    made = Augmentation().apply(mosaic([empty] * 4, generator), SIZE, generator)
    assert made.boxes.shape == (0, 4) and made.classes.shape == (0,)
