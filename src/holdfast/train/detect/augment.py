"""Augmentation of an image and its boxes: mosaic of four, rotation, shift and size, mirror image, and colours.

Boxes are corners (left, top, right, bottom) in pixels, where a pixel is the square between two whole numbers. Everything is
drawn from the generator that the caller passes, in a fixed order, so the same generator gives the same picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]

_GREY = 114  # where a picture has no image
_LEAST_SIDE = 2.0  # pixels: a smaller box is dropped
_LEAST_LEFT = 0.1  # fraction of a box: if less of it is left in the picture, it is dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """How much training images are changed. 0 switches a change off."""

    hsv_h: float = 0.015
    hsv_s: float = 0.7
    hsv_v: float = 0.4
    degrees: float = 10.0
    translate: float = 0.1
    scale: float = 0.5
    fliplr: float = 0.5
    mosaic: float = 1.0

    def wants_mosaic(self, random: np.random.Generator) -> bool:
        """Whether the next picture is a mosaic."""
        return bool(random.random() < self.mosaic)

    def apply(self, picture: Picture, size: int, random: np.random.Generator) -> Picture:
        """Everything but the mosaic; the result is `size` × `size`."""
        matrix = random_matrix(self, picture.image.shape, size, random)
        colours = random_colours(self, random)
        mirrored = random.random() < self.fliplr
        changed = recolour(warp(picture, matrix, size), *colours)
        return mirror(changed) if mirrored else changed


class Picture(NamedTuple):
    """An image (3 × height × width, bytes) and its boxes. `areas` are those of the whole boxes, before anything was cut off."""

    image: torch.Tensor
    boxes: Floats
    classes: npt.NDArray[np.int64]
    areas: Floats

    @classmethod
    def whole(cls, image: torch.Tensor, boxes: Floats, classes: npt.NDArray[np.int64]) -> Picture:
        """An image of which nothing was cut off."""
        return cls(image, boxes, classes, _areas(boxes))


def mosaic(pictures: Sequence[Picture], random: np.random.Generator) -> Picture:
    """Four images of one size around a random point, on a canvas of twice that size; each is cut where the canvas ends."""
    size = pictures[0].image.shape[-1]
    canvas = torch.full((3, 2 * size, 2 * size), _GREY, dtype=torch.uint8)
    middle_x, middle_y = (int(value) for value in random.uniform(0.5 * size, 1.5 * size, 2))
    parts = []
    for place, picture in enumerate(pictures):
        left, top = middle_x - size * (place % 2 == 0), middle_y - size * (place < 2)
        x0, y0, x1, y1 = max(left, 0), max(top, 0), min(left + size, 2 * size), min(top + size, 2 * size)
        canvas[:, y0:y1, x0:x1] = picture.image[:, y0 - top : y1 - top, x0 - left : x1 - left]
        boxes = _clipped(picture.boxes + np.array([left, top, left, top], np.float32), 2 * size)
        parts.append(_with_enough(picture._replace(boxes=boxes)))
    return Picture(canvas, *(np.concatenate([part[field] for part in parts]) for field in (1, 2, 3)))


def random_matrix(amount: Augmentation, shape: Sequence[int], size: int, random: np.random.Generator) -> Matrix:
    """The map (2 × 3) from an image's pixels to the picture's: turned and scaled around the middle, then shifted."""
    angle = math.radians(random.uniform(-amount.degrees, amount.degrees))
    factor = random.uniform(1 - amount.scale, 1 + amount.scale)
    shift = random.uniform(0.5 - amount.translate, 0.5 + amount.translate, 2) * size
    turn = factor * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    return np.column_stack([turn, shift - turn @ (shape[-1] / 2, shape[-2] / 2)])


def warp(picture: Picture, matrix: Matrix, size: int) -> Picture:
    """Map an image and its boxes; a turned box becomes the box around its corners. What no longer shows enough is dropped."""
    turn, shift = matrix[:, :2], matrix[:, 2]
    corners = picture.boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2) @ turn.T + shift
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).astype(np.float32)
    areas = picture.areas * np.float32(abs(np.linalg.det(turn)))
    image = _warped(picture.image, matrix, size)
    return _with_enough(Picture(image, _clipped(boxes, size), picture.classes, areas))


def _warped(image: torch.Tensor, matrix: Matrix, size: int) -> torch.Tensor:
    """Bilinear. Only that part of the image is read that the picture shows."""
    height, width = image.shape[-2:]
    if (height, width) == (size, size) and np.array_equal(matrix, np.eye(2, 3)):
        return image
    back = np.linalg.inv(matrix[:, :2])
    start = -back @ matrix[:, 2]
    corners = np.array([[0, 0], [size, 0], [0, size], [size, size]]) @ back.T + start
    left, top = np.clip(np.floor(corners.min(axis=0)).astype(int) - 1, 0, (width - 1, height - 1))
    right, bottom = np.clip(np.ceil(corners.max(axis=0)).astype(int) + 1, (left + 1, top + 1), (width, height))
    scale = 2 / np.array([right - left, bottom - top])  # grid_sample counts from -1 to 1
    centres = torch.arange(size) + 0.5
    grid = torch.empty(1, size, size, 2)
    for axis, (across, down) in enumerate((back * scale[:, None]).tolist()):
        first = float((start[axis] - (left, top)[axis]) * scale[axis] - 1)
        torch.add(centres * across + first, (centres * down)[:, None], out=grid[0, :, :, axis])
    source = image[None, :, top:bottom, left:right].float().sub_(_GREY)
    made = torch.nn.functional.grid_sample(source, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return made[0].add_(_GREY).round_().to(torch.uint8)


def random_colours(amount: Augmentation, random: np.random.Generator) -> tuple[float, float, float]:
    """The turn of the hue in radians, and the factors of saturation and brightness."""
    hue, saturation, brightness = random.uniform(-1, 1, 3) * (amount.hsv_h, amount.hsv_s, amount.hsv_v)
    return 2 * math.pi * float(hue), 1 + float(saturation), 1 + float(brightness)


def recolour(picture: Picture, hue: float, saturation: float, brightness: float) -> Picture:
    """Change the colours. Hue is turned about the grey axis of RGB, which takes a tenth of the time of the way over HSV."""
    if (hue, saturation, brightness) == (0, 1, 1):
        return picture
    cosine, third, sine = math.cos(hue), (1 - math.cos(hue)) / 3, math.sin(hue) / math.sqrt(3)
    keep, less, more = cosine + third, third - sine, third + sine
    turn = torch.tensor([[keep, less, more], [more, keep, less], [less, more, keep]])
    values = (turn @ picture.image.flatten(1).float()).view(picture.image.shape)
    most = values.amax(dim=0, keepdim=True)  # HSV's value: saturation moves the other channels away from it
    values = values.sub_(most).mul_(saturation * brightness).add_(most, alpha=brightness)
    return picture._replace(image=values.round_().clamp_(0, 255).to(torch.uint8))


def mirror(picture: Picture) -> Picture:
    """Left and right exchanged."""
    width = picture.image.shape[-1]
    left, top, right, bottom = picture.boxes.T
    boxes = np.stack([width - right, top, width - left, bottom], axis=1)
    return picture._replace(image=picture.image.flip(-1), boxes=boxes)


def _areas(boxes: Floats) -> Floats:
    areas: Floats = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def _clipped(boxes: Floats, size: int) -> Floats:
    return np.clip(boxes, np.float32(0), np.float32(size))


def _with_enough(picture: Picture) -> Picture:
    """Without the boxes of which too little is left."""
    sides = picture.boxes[:, 2:] - picture.boxes[:, :2]
    kept = (sides.min(axis=1) >= _LEAST_SIDE) & (_areas(picture.boxes) >= _LEAST_LEFT * picture.areas)
    return Picture(picture.image, picture.boxes[kept], picture.classes[kept], picture.areas[kept])
