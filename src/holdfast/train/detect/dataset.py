"""Detection data for a loader: images resized to one size, with their boxes; augmented for training.

A sample depends on the seed, the epoch and its index, and on nothing else: not on the worker that loads it, nor on the samples
before it. So a resumed epoch need not load again what it has used, and any number of workers and ranks gives the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset, default_collate

from holdfast.data.cache import fingerprint, fingerprint_of_files
from holdfast.data.checks.images import way_of
from holdfast.data.listing import read_bytes
from holdfast.data.pixels import exif_orientation, opened
from holdfast.data.samples import Entry, ImageSet
from holdfast.data.visualize.pictures import stretched
from holdfast.errors import UsageError
from holdfast.train.detect.augment import Augmentation, Picture, mosaic
from holdfast.train.detect.boxes import class_keys, described, entries_of, read_labels, validate_command
from holdfast.train.detect.cache import (
    CacheKind,
    ImageCache,
    Progress,
    Size,
    cached_in_memory,
    cached_on_disk,
    plan_memory,
)

Sample = dict[str, Any]

_LARGEST_FILE = 1 << 30
_DECODED = 1  # raise it whenever images are decoded or resized in another way: caches on disk are made anew


class UnreadableImage(UsageError):
    """An image that cannot be read in the middle of a training.

    A loader's worker hands an error on as one text with its traceback: the problem and the fix are read from that again.
    """

    def __init__(self, problem: str, *, fix: str = "") -> None:
        if not fix:
            problem, _, fix = problem.rpartition(f"{type(self).__name__}: ")[2].rstrip().partition("\n  fix: ")
        super().__init__(problem, fix=fix)

    def __str__(self) -> str:
        return f"{self.problem}\n  fix: {self.fix}"


class DetectionData(Dataset[Sample]):
    """The images of one split. Without `augmentation` they are only resized; mosaic is used in the first `mosaic_epochs`."""

    fast_forward = True  # used samples need not be drawn again when an epoch is resumed

    def __init__(
        self,
        data: ImageSet,
        split: str,
        *,
        imgsz: int,
        augmentation: Augmentation | None = None,
        mosaic_epochs: int | None = None,
        seed: int = 0,
    ) -> None:
        self.imgsz, self.augmentation, self.mosaic_epochs, self.seed = imgsz, augmentation, mosaic_epochs, seed
        self.split, self.epoch = split, 0
        self.path, self._validate = described(data), validate_command(data)
        self._root, self._read_label = data.root, data.read_label
        self._entries = entries_of(data, split)
        self._labels = read_labels(data, split)
        self.classes = [data.class_name(key) for key in class_keys(data)]
        self._cache: ImageCache | None = None
        self._stamp = fingerprint_of_files(
            {entry.image: data.listing.files.get(entry.image, (0, 0)) for entry in self._entries}, _DECODED
        )

    def __len__(self) -> int:
        return len(self._entries)

    def set_epoch(self, epoch: int) -> None:
        """Called at the start of each epoch, before the workers start."""
        self.epoch = epoch

    def file(self, index: int) -> str:
        """The image file of a sample, relative to the data set's folder."""
        return self._entries[index].image

    def __getitem__(self, index: int) -> Sample:
        picture, size = self._picture(index)
        if self.augmentation is not None:
            picture = self._augmented(picture, index, self.augmentation)
        left, top, right, bottom = picture.boxes.T / np.float32(self.imgsz)
        boxes = np.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], axis=1)
        return {
            "image": picture.image,
            "boxes": torch.from_numpy(boxes),
            "classes": torch.from_numpy(picture.classes),
            "index": index,
            "size": size,
        }

    def _augmented(self, picture: Picture, index: int, augmentation: Augmentation) -> Picture:
        random = np.random.default_rng((self.seed, self.epoch, index))
        is_closed = self.mosaic_epochs is not None and self.epoch >= self.mosaic_epochs
        if augmentation.wants_mosaic(random) and not is_closed:
            others = random.integers(len(self), size=3).tolist()
            picture = mosaic([picture, *(self._picture(other)[0] for other in others)], random)
        return augmentation.apply(picture, self.imgsz, random)

    def _picture(self, index: int) -> tuple[Picture, Size]:
        """A sample as it is resized, and the size of its original."""
        image, size = self._cache[index] if self._cache is not None else self._decoded(index)
        boxes, classes = self._labels.of(index, size)
        return Picture.whole(image, boxes * np.float32(self.imgsz), classes), size

    def original(self, index: int) -> tuple[str, Image.Image]:
        """The file of a sample, and the image in its own size, the way its labels mean it."""
        return self.file(index), self._opened(index, None)[0]

    def _decoded(self, index: int) -> tuple[torch.Tensor, Size]:
        """The resized image, and the size of the original."""
        image, size = self._opened(index, self.imgsz)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        if pixels.shape[1:] == (self.imgsz, self.imgsz):
            return pixels.contiguous(), size
        sides = (self.imgsz, self.imgsz)  # a fifth of the time that Pillow takes, and the same pixels
        return torch.nn.functional.interpolate(pixels[None], sides, mode="bilinear", antialias=True)[0].contiguous(), size

    def _opened(self, index: int, least: int | None) -> tuple[Image.Image, Size]:
        entry = self._entries[index]
        try:
            return _read(self._root / entry.image, least, lambda *turn: self._fits(entry, *turn))
        except Exception as error:  # noqa: BLE001 - decoders raise anything on damaged files
            raise UnreadableImage(
                f"{entry.image} cannot be read: {' '.join(str(error).split()) or type(error).__name__}.",
                fix=f"replace it (all such files: {self._validate}), then: holdfast resume",
            ) from None

    def _fits(self, entry: Entry, orientation: int, width: int, height: int) -> str:
        return way_of(self._read_label(self._root, entry), orientation, width, height)

    def fill_cache(self, kind: CacheKind, progress: Progress | None = None) -> None:
        """Decode and resize all images, in this process, before the workers start."""
        if kind == "ram":
            self._cache = cached_in_memory(len(self), self.imgsz, self._decoded, progress)
        else:
            name = f"{fingerprint(str(self.path), self.split)}-{self.imgsz}"
            self._cache = cached_on_disk(name, self._stamp, len(self), self.imgsz, self._decoded, progress)


def fill_caches(parts: Sequence[DetectionData], kind: CacheKind, progress: Progress | None = None) -> None:
    """Cache several splits; whether they fit together is checked before the first image is read. `progress` counts all."""
    total, before = sum(map(len, parts)), 0
    if kind == "ram":
        plan_memory(total, parts[0].imgsz)
    for part in parts:
        part.fill_cache(kind, None if progress is None else _advanced(progress, before, total))
        before += len(part)


def _advanced(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: progress(before + done, total)


def collate(samples: list[Sample]) -> dict[str, Any]:
    """Samples as a batch; the boxes of each image are a tensor of their own."""
    return {
        "images": default_collate([sample["image"] for sample in samples]),
        "boxes": [sample["boxes"] for sample in samples],
        "classes": [sample["classes"] for sample in samples],
        "index": torch.tensor([sample["index"] for sample in samples]),
        "size": torch.tensor([sample["size"] for sample in samples]),
    }


def _read(path: Path, least: int | None, fits: Callable[[int, int, int], str]) -> tuple[Image.Image, Size]:
    """Decode an image to RGB, the way its labels mean it, and say how large it is. A JPEG may come smaller, down to `least`."""
    image: Image.Image = opened(read_bytes(path, limit=_LARGEST_FILE))
    (width, height), exif = image.size, image.info.get("exif")
    orientation = exif_orientation(exif.removeprefix(b"Exif\0\0")) if isinstance(exif, bytes) else 1
    if least is not None:
        image.draft("RGB", (least, least))
    if orientation > 1 and fits(orientation, width, height) != "stored":
        image = ImageOps.exif_transpose(image)
        width, height = (height, width) if orientation > 4 else (width, height)
    image.load()
    if image.mode != "RGB":
        image = stretched(image) if image.mode.startswith(("I", "F")) else image.convert("RGB")
    return image, (height, width)
