"""Plain values: what can be copied, written and read without running code.

Each tensor in a tree of plain values is replaced by a `Ref`, so that all tensors can be copied together. Anything else (a
function, an open file, a model that a scheduler holds) is not copied, and a restore leaves it alone.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from holdfast.state.parameters import sharded_as

Tree = dict[str, Any]
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_MAX_DEPTH = 12
_ARRAY = "numpy array"  # a numpy array is kept as its bytes: only torch's own tensors are read without running code
_SKIPPED = object()


class Ref(NamedTuple):
    """A reference to tensor `number` of a tree."""

    number: int


class NotPlain(Exception):
    """A value that cannot be copied."""


def attributes_of(obj: Any) -> dict[str, Any]:
    """The attributes of an object; empty if it has no `__dict__`."""
    try:
        attributes: dict[str, Any] = vars(obj)
    except TypeError:
        return {}
    return attributes


def weak_reference(obj: Any) -> Callable[[], Any]:
    """A weak reference; a strong one where weak ones are not supported (a list, a class with slots)."""
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: obj


def flatten(value: Any, keep: Callable[[torch.Tensor], Ref], depth: int = 0) -> Any:
    """Copy a value, with a `Ref` for each tensor. Raises NotPlain."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, torch.Tensor):
        return keep(value)
    if depth > _MAX_DEPTH:
        raise NotPlain(kind.__name__)
    if kind in (dict, OrderedDict, Counter):
        pairs = ((key, _entry(inner, keep, depth)) for key, inner in value.items() if _is_key(key))
        return {key: inner for key, inner in pairs if inner is not _SKIPPED}
    if kind in (list, tuple, deque):
        items = [flatten(item, keep, depth + 1) for item in value]  # a missing one would shift the others
        return tuple(items) if kind is tuple else items
    if kind is np.ndarray and value.dtype.kind in "biufc":
        return {_ARRAY: value.tobytes(), "dtype": value.dtype.str, "shape": value.shape}
    if kind.__module__ == "numpy" and hasattr(kind, "item") and getattr(value, "ndim", 1) == 0:
        return value.item()
    raise NotPlain(kind.__name__)


def flatten_plain(value: Any, keep: Callable[[torch.Tensor], Ref]) -> Any:
    """As `flatten`, but `{}` for a value that is not plain."""
    try:
        return flatten(value, keep)
    except NotPlain:
        return {}


def flatten_all(value: Any, key: Callable[[torch.Tensor], Any] = id) -> tuple[Any, list[torch.Tensor]]:
    """A tree with a `Ref` for each tensor, and the tensors; those with the same `key` are one."""
    refs: dict[Any, Ref] = {}
    tensors: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> Ref:
        if (name := key(tensor)) not in refs:
            refs[name] = Ref(len(tensors))
            tensors.append(tensor)
        return refs[name]

    return flatten(value, keep), tensors


def unflatten(tree: Any, get: Callable[[Ref], Any], like: Any = None, *, arrays: bool = True) -> Any:
    """The inverse, with containers of the types in `like`; without `arrays`, arrays stay bytes."""
    if isinstance(tree, Ref):
        return get(tree) if like is None else sharded_as(get(tree), like)
    if isinstance(tree, dict) and _ARRAY in tree and arrays:
        return np.frombuffer(tree[_ARRAY], tree["dtype"]).reshape(tree["shape"]).copy()
    if isinstance(tree, dict):
        likes = like if isinstance(like, dict) else {}
        plain = {key: unflatten(value, get, likes.get(key), arrays=arrays) for key, value in tree.items()}
        return Counter(plain) if type(like) is Counter else OrderedDict(plain) if type(like) is OrderedDict else plain
    if isinstance(tree, tuple):
        return tuple(unflatten(item, get, arrays=arrays) for item in tree)
    if isinstance(tree, list):
        known_items = like if isinstance(like, (list, deque)) and len(like) == len(tree) else [None] * len(tree)
        items = [unflatten(item, get, likes, arrays=arrays) for item, likes in zip(tree, known_items, strict=True)]
        return deque(items, maxlen=like.maxlen) if isinstance(like, deque) else items
    return tree


def refs_in(tree: Any, path: str = "") -> Iterator[tuple[str, Ref]]:
    """Each `Ref` in a tree with its path."""
    if isinstance(tree, Ref):
        yield path, tree
    elif isinstance(tree, (dict, list, tuple)):
        for name, inner in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from refs_in(inner, f"{path}.{name}" if path else str(name))


def is_plain(value: Any) -> bool:
    """Whether a value can be copied and restored."""
    try:
        flatten(value, lambda _: Ref(0))
    except NotPlain:
        return False
    return True


def not_plain(value: Any, path: str = "", depth: int = 0) -> list[str]:
    """The parts of a value that are not plain: `transform (function)`."""
    kind = type(value)
    if kind in (dict, OrderedDict, Counter) and depth <= _MAX_DEPTH:
        rejected = [f"{path}[{type(key).__name__}]" for key in value if not _is_key(key)][:1]
        for key, inner in value.items():
            rejected += not_plain(inner, f"{path}.{key}" if path else str(key), depth + 1)
        return rejected
    return [] if is_plain(value) else [f"{path} ({kind.__name__})" if path else kind.__name__]


def _is_key(key: Any) -> bool:
    return type(key) in _SCALARS or (type(key) is tuple and all(type(part) in _SCALARS for part in key))


def _entry(value: Any, keep: Callable[[torch.Tensor], Ref], depth: int) -> Any:
    if type(value) is torch.Tensor:  # by far the most common
        return keep(value)
    try:
        return flatten(value, keep, depth + 1)
    except NotPlain:
        return _SKIPPED
