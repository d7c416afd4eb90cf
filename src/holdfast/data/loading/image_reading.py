"""Images as a data set that Holdfast reads by itself, for who has no loader yet: decoded, made RGB, brought to one size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from torch import Tensor, from_numpy
from torch.utils.data import Dataset

from holdfast.data.listing import read_bytes
from holdfast.data.pixels import opened
from holdfast.data.samples import ImageSet
from holdfast.errors import UsageError

SIDE = 224
_LARGEST = 1 << 30


class Images(Dataset[Tensor]):
    """The images of a set. So many `pool_threads` read and decode a batch together: Pillow lets them."""

    read_by_holdfast = f"images, read by Holdfast itself as RGB of {SIDE} × {SIDE}"

    def __init__(self, data: ImageSet) -> None:
        if not data.entries:
            raise UsageError(f"{data.root} holds no image", fix="name the folder above the images, or another --format")
        self._paths = [str(data.path_of(entry)) for entry in data.entries]
        self.pool_threads = 1
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: int) -> Tensor:
        image = opened(read_bytes(self._paths[place], limit=_LARGEST))
        image.load()
        return prepared(image)

    def __getitems__(self, places: list[int]) -> list[Tensor]:
        """A batch at once, as torch asks for it."""
        if self.pool_threads <= 1:
            return [self[place] for place in places]
        if self._pool is None or self._size != self.pool_threads:
            self._pool, self._size = ThreadPoolExecutor(self.pool_threads), self.pool_threads
        return list(self._pool.map(self.__getitem__, places))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None, "_size": 0}


def prepared(image: Any) -> Tensor:
    """What a training would do at least: RGB, one size, numbers in the order of torch."""
    pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)))
    return from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255)
