"""Which split a file belongs to, read from the folders and the name it has."""

from __future__ import annotations

import re

ALL = "all"  # a set that is not split
_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "eval": "val",
    "test": "test",
    "testing": "test",
}


def split_named(path: str) -> str:
    """The split that a path names, in a folder or in its file's name (`x_train.npy`, `instances_val2017.json`); else `all`."""
    *folders, name = path.split("/")
    for folder in reversed(folders):
        split = word_of_split(folder)
        if split:
            return split
    words = re.split(r"[^A-Za-z]+", name.rpartition(".")[0] or name)
    return next((_NAMES[word.lower()] for word in words if word.lower() in _NAMES), ALL)


def word_of_split(name: str) -> str | None:
    """The split that a name of a folder or file stands for: train, val or test; `train2017` is one."""
    return _NAMES.get(name.lower().rstrip("0123456789_-"))


def order_of(split: str) -> int:
    """Training first, then validation, then test, then the rest."""
    return ("train", "val", "test").index(split) if split in ("train", "val", "test") else 3
