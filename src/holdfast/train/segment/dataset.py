"""Segmentation data for a loader: images and masks resized to one size; augmented for training.

A sample depends on the seed, the epoch and its index, and on nothing else, so that a resumed epoch gives the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from holdfast.train.detect.augment import Augmentation, Picture, random_colours, random_matrix, recolour, warp
from holdfast.train.detect.cache import plan_memory
from holdfast.train.detect.dataset import UnreadableImage
from holdfast.train.segment.masks import MaskedImage


class SegmentationData(Dataset[Any]):
    """Samples `image` (3×S×S, bytes), `mask` (S×S, 0 or 1) and `index`. Without `augmentation` they are only resized."""

    fast_forward = True  # used samples need not be drawn again when an epoch is resumed

    def __init__(
        self,
        images: Sequence[MaskedImage],
        imgsz: int,
        *,
        augmentation: Augmentation | None = None,
        flipud: float = 0.0,
        seed: int = 0,
        keep: bool = False,
    ) -> None:
        self.images, self.imgsz = images, imgsz
        self._augmentation, self._flipud, self._seed, self._epoch = augmentation, flipud, seed, 0
        self._kept: torch.Tensor | None = None
        if keep:
            plan_memory(-(-4 * len(images) // 3), imgsz)  # a mask is a fourth channel
            self._kept = torch.stack([self._resized(index) for index in range(len(self))])

    def __len__(self) -> int:
        return len(self.images)

    def set_epoch(self, epoch: int) -> None:
        """Called at the start of each epoch, before the workers start."""
        self._epoch = epoch

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels = self._kept[index] if self._kept is not None else self._resized(index)
        if self._augmentation is not None:
            pixels = self._augmented(pixels, self._augmentation, np.random.default_rng((self._seed, self._epoch, index)))
        return {"image": pixels[:3], "mask": (pixels[3] > 127).to(torch.uint8), "index": index}

    def _augmented(self, pixels: torch.Tensor, amount: Augmentation, random: np.random.Generator) -> torch.Tensor:
        """Turn, shift and scale image and mask together, then flip; colours change in the image only."""
        matrix, colours = random_matrix(amount, pixels.shape, self.imgsz, random), random_colours(amount, random)
        flipped = [axis for axis, chance in ((-1, amount.fliplr), (-2, self._flipud)) if random.random() < chance]
        none = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
        warped = warp(Picture.whole(pixels, *none), matrix, self.imgsz).image  # beside the image is grey, which is no foreground
        coloured = recolour(Picture.whole(warped[:3], *none), *colours).image
        return torch.cat([coloured, warped[3:]]).flip(flipped)

    def _resized(self, index: int) -> torch.Tensor:
        """Red, green, blue and the mask."""
        try:
            image, mask = self.images[index].read()
        except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files
            raise UnreadableImage(
                f"{self.images[index].file} or its mask cannot be read: {' '.join(str(error).split()) or type(error).__name__}.",
                fix="replace or remove it, then resume; holdfast validate lists all such files",
            ) from None
        pixels = torch.from_numpy(np.dstack([np.asarray(image), np.asarray(mask)])).permute(2, 0, 1)
        sides = (self.imgsz, self.imgsz)
        if pixels.shape[1:] == sides:
            return pixels.contiguous()
        return torch.nn.functional.interpolate(pixels[None], sides, mode="bilinear", antialias=True)[0].contiguous()
