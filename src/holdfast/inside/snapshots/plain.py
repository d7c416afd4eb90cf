"""Plain values: what can be copied, written and read again without running anyone's code.

A tree of plain values may hold tensors; they are taken out and replaced by their number, so that they can be copied all
together. What is not plain (a function, an open file, a model that a scheduler holds on to) is left out, and is left as it
is when the tree is put back.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_DEEPEST = 12
_ARRAY = "numpy array"  # stands for one: its bytes, as nothing but torch's own tensors is read without running code


class Ref(NamedTuple):
    """Stands for tensor `number` of those that were taken out."""

    number: int


class LeftOut(Exception):
    """A value that is not plain."""


def attributes_of(thing: Any) -> dict[str, Any]:
    """What an object holds; nothing if it has no dict of its own."""
    try:
        inside: dict[str, Any] = vars(thing)
    except TypeError:
        return {}
    return inside


def take_apart(value: Any, keep: Callable[[torch.Tensor], Ref], depth: int = 0) -> Any:
    """A copy of the value with `Ref`s for tensors. Raises LeftOut if the value itself is not plain."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, torch.Tensor):
        return keep(value)
    if depth > _DEEPEST:
        raise LeftOut(kind.__name__)
    if kind in (dict, OrderedDict, Counter):
        pairs = ((key, _inside(given, keep, depth)) for key, given in value.items() if _is_key(key))
        return {key: inner for key, inner in pairs if inner is not _NOTHING}
    if kind in (list, tuple, deque):
        items = [take_apart(item, keep, depth + 1) for item in value]  # one that is missing would shift the others
        return tuple(items) if kind is tuple else items
    if kind is np.ndarray and value.dtype.kind in "biufc":
        return {_ARRAY: value.tobytes(), "dtype": value.dtype.str, "shape": value.shape}
    if kind.__module__ == "numpy" and hasattr(kind, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    raise LeftOut(kind.__name__)


def is_plain(value: Any) -> bool:
    """Whether a value can be copied and put back."""
    try:
        take_apart(value, lambda _: Ref(0))
    except LeftOut:
        return False
    return True


def _is_key(key: Any) -> bool:
    return type(key) in _SCALARS or (type(key) is tuple and all(type(part) in _SCALARS for part in key))


def left_out(value: Any, path: str = "", depth: int = 0) -> list[str]:
    """What in a value is not plain, with the way to it: `transform (function)`."""
    kind = type(value)
    if kind in (dict, OrderedDict, Counter) and depth <= _DEEPEST:
        found = [f"{path}[{type(key).__name__}]" for key in value if not _is_key(key)][:1]
        for key, inner in value.items():
            found += left_out(inner, f"{path}.{key}" if path else str(key), depth + 1)
        return found
    return [] if is_plain(value) else [f"{path} ({kind.__name__})" if path else kind.__name__]


_NOTHING = object()


def _inside(value: Any, keep: Callable[[torch.Tensor], Ref], depth: int) -> Any:
    if type(value) is torch.Tensor:  # by far the most common
        return keep(value)
    try:
        return take_apart(value, keep, depth + 1)
    except LeftOut:
        return _NOTHING


def put_together(tree: Any, get: Callable[[Ref], torch.Tensor], like: Any = None, *, arrays: bool = True) -> Any:
    """The value again, with fresh containers of the types that `like` has; without `arrays` these stay bytes."""
    if isinstance(tree, Ref):
        return get(tree)
    if isinstance(tree, dict) and _ARRAY in tree and arrays:
        return np.frombuffer(tree[_ARRAY], tree["dtype"]).reshape(tree["shape"]).copy()
    if isinstance(tree, dict):
        known = like if isinstance(like, dict) else {}
        plain = {key: put_together(value, get, known.get(key), arrays=arrays) for key, value in tree.items()}
        return Counter(plain) if type(like) is Counter else OrderedDict(plain) if type(like) is OrderedDict else plain
    if isinstance(tree, tuple):
        return tuple(put_together(item, get, arrays=arrays) for item in tree)
    if isinstance(tree, list):
        known_items = like if isinstance(like, (list, deque)) and len(like) == len(tree) else [None] * len(tree)
        items = [put_together(item, get, known, arrays=arrays) for item, known in zip(tree, known_items, strict=True)]
        return deque(items, maxlen=like.maxlen) if isinstance(like, deque) else items
    return tree
