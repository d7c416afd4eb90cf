"""Images with masks of foreground and background: opened, matched and split. torch is not imported here."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from holdfast.data.cache import cache_folder
from holdfast.data.formats.detect import Settings, open_data
from holdfast.data.formats.masks import folder_of_masks
from holdfast.data.listing import read_bytes
from holdfast.data.pixels import opened
from holdfast.data.samples import Entry, ImageSet
from holdfast.data.visualize.pictures import stretched
from holdfast.errors import UsageError

_LARGEST_FILE = 1 << 30
_VALIDATED = 0.2  # fraction of the images, where the data has no split `val`
_FORMAT = "put images in FOLDER/images and masks of the same names in FOLDER/masks"


def open_masks(path: str | Path) -> ImageSet:
    """Open a data set of images with masks of foreground and background."""
    data = open_data(path, Settings(cache=cache_folder()))
    if not isinstance(data, ImageSet) or data.format != "masks":
        raise UsageError(f"{path} holds no images with masks.", fix=_FORMAT)
    if len(data.classes) > 2:
        problem = f"{path} lists {len(data.classes)} classes; this training tells foreground from background."
        raise UsageError(problem, fix="masks that are 0 in the background, without a classes.txt")
    return data


class MaskedImage:
    """An image and its masks: one, or one for each object."""

    def __init__(self, root: Path, entry: Entry, folder: str) -> None:
        self.file = entry.image
        self._image = root / entry.image
        self._masks = [root / mask for mask in entry.masks if folder_of_masks(mask) == folder]

    def read(self) -> tuple[Image.Image, Image.Image]:
        """The image in RGB, and its mask, 255 where a mask is not 0; both of one size."""
        image = opened(read_bytes(self._image, limit=_LARGEST_FILE))
        image.load()
        mask = self._mask()
        if image.size != mask.size:  # the mask was drawn on the image as its camera was held
            image = ImageOps.exif_transpose(image)
        if image.mode != "RGB":
            image = stretched(image) if image.mode.startswith(("I", "F")) else image.convert("RGB")
        return image, mask if mask.size == image.size else mask.resize(image.size, Image.Resampling.NEAREST)

    def _mask(self) -> Image.Image:
        foreground: Any = False
        for path in self._masks:
            values = np.asarray(opened(read_bytes(path, limit=_LARGEST_FILE)))
            foreground = foreground | (values if values.ndim == 2 else values[..., :3].max(axis=2)).astype(bool)
        return Image.fromarray(foreground.astype(np.uint8) * 255)


def split_up(data: ImageSet) -> tuple[list[MaskedImage], list[MaskedImage], str]:
    """The images to train and to validate on, and in words what was chosen. Those without a mask are skipped."""
    folders = Counter(folder_of_masks(mask) for entry in data.entries for mask in entry.masks)
    folder = max(folders, key=lambda name: ("instance" not in name.lower(), folders[name]), default="")
    entries = [entry for entry in data.entries if any(folder_of_masks(mask) == folder for mask in entry.masks)]
    notes = [f"masks in {folder}/; non-zero pixels are foreground"]
    if len(data.entries) > len(entries):
        notes.append(f"{len(data.entries) - len(entries)} images without a mask are skipped")
    validated = [entry for entry in entries if entry.split == "val"]
    trained = [entry for entry in entries if entry.split not in ("val", "test")]
    if not validated and len(trained) > 1:
        drawn = sorted(trained, key=lambda entry: zlib.crc32(entry.image.encode()))
        validated = drawn[: max(1, round(_VALIDATED * len(drawn)))]
        chosen = {entry.image for entry in validated}
        trained = [entry for entry in trained if entry.image not in chosen]
        notes.append(f"no split val: {len(validated)} of {len(drawn)} images are held out for validation")
    if not trained or not validated:
        problem = f"{data.root} has {len(trained)} images to train on and {len(validated)} to validate on."
        raise UsageError(problem, fix="put them in FOLDER/images/train and FOLDER/images/val, and their masks likewise")
    made = ([MaskedImage(data.root, entry, folder) for entry in some] for some in (trained, validated))
    return next(made), next(made), "; ".join(notes)
