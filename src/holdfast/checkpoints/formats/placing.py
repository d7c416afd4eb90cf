"""Where the storages of a torch file lie, and whether the tensors fit into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.checkpoints.contents import Contents, Storage, TensorInfo, Trouble
from holdfast.checkpoints.formats.files import few
from holdfast.checkpoints.formats.torch_words import OLDER
from holdfast.checkpoints.harmless import ITEM_SIZES


def needs(tensor: TensorInfo) -> int:
    """Bytes that a tensor needs, from the beginning of its storage to its last number."""
    if 0 in tensor.shape:
        return 0
    size = ITEM_SIZES.get(tensor.dtype, 1)
    if tensor.stride is None:
        return (tensor.offset + tensor.count) * size
    return (tensor.offset + 1 + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride, strict=True))) * size


def name_kinds(storages: list[Storage], tensors: Sequence[TensorInfo]) -> list[Storage]:
    """Newer torch writes storages without a kind; they are of the kind of their tensors, if these agree."""
    kinds: dict[int, set[str]] = {}
    for tensor in tensors:
        kinds.setdefault(tensor.storage, set()).add(tensor.dtype)
    return [
        replace(storage, dtype=next(iter(kinds[at]))) if len(kinds.get(at, ())) == 1 else storage
        for at, storage in enumerate(storages)
    ]


def too_short(contents: Contents) -> Trouble | None:
    """The trouble of tensors that need more bytes than their storage has."""
    short = [tensor.name for tensor in contents.tensors if needs(tensor) > contents.storages[tensor.storage].size]
    if not short:
        return None
    words = f"{'A tensor is' if len(short) == 1 else f'{len(short):,} tensors are'} not there in full: {few(short)}."
    return Trouble("torn", words, OLDER, short[0])


def versions_in(tree: Any) -> dict[str, str]:
    """The versions that a checkpoint tells itself, at the top of its tree."""
    if not isinstance(tree, dict):
        return {}
    found = {key: value for key, value in tree.items() if isinstance(key, str) and isinstance(value, str) and len(value) < 50}
    return {
        key.removesuffix("_version").removeprefix("pytorch-"): value for key, value in found.items() if key.endswith("_version")
    }
