"""What a batch holds, however it is nested: its values with the names of their fields, and which of them are not finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

_DEPTH = 8
_NAMED_SAMPLES = 5
PLAIN = (str, int, float, bool, bytes, type(None))


def leaves(batch: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Every value in a batch with the name of its field: `'image'`, `0`, `1.'mask'`; the name of a bare tensor is empty."""
    if isinstance(batch, (torch.Tensor, np.ndarray, *PLAIN)) or depth == 0:
        yield path, batch
        return
    before = f"{path}." if path else ""
    for name, part in _parts(batch):
        yield from leaves(part, f"{before}{name!r}", depth - 1)


def _parts(batch: Any) -> Iterator[tuple[Any, Any]]:
    fields = getattr(batch, "_fields", None)
    if isinstance(batch, Mapping):
        yield from batch.items()
    elif isinstance(batch, tuple) and isinstance(fields, tuple):
        yield from zip(fields, batch, strict=True)
    elif isinstance(batch, (list, tuple)):
        yield from enumerate(batch)
    elif dataclasses.is_dataclass(batch):
        yield from ((field.name, getattr(batch, field.name, None)) for field in dataclasses.fields(batch))
    elif hasattr(batch, "__dict__") and not callable(batch):
        yield from vars(batch).items()


def same_shape(batch: Any, change: Callable[[Any], Any], depth: int = _DEPTH) -> Any:
    """The same batch with every value changed; containers of a kind that is not known are handed to `change` whole."""
    if depth and type(batch) in (dict, list, tuple):
        if type(batch) is dict:
            return {key: same_shape(part, change, depth - 1) for key, part in batch.items()}
        return type(batch)(same_shape(part, change, depth - 1) for part in batch)
    return change(batch)


def is_plain(batch: Any, depth: int = _DEPTH) -> bool:
    """Whether `torch.load(weights_only=True)` could read it back: tensors in dicts, lists and tuples."""
    kind = type(batch)
    if kind is torch.Tensor or kind in PLAIN:
        return True
    if depth == 0 or kind not in (dict, list, tuple):
        return False
    parts = [*batch.keys(), *batch.values()] if kind is dict else batch
    return all(is_plain(part, depth - 1) for part in parts)


def size_of(batch: Any) -> int:
    """Bytes of all tensors and arrays in it."""
    return sum(int(value.nbytes) for _, value in leaves(batch) if isinstance(value, (torch.Tensor, np.ndarray)))


@dataclasses.dataclass(frozen=True, slots=True)
class BadField:
    """A field with values that are not finite: how many of which kind, and in which samples (first dimension)."""

    name: str
    count: int
    of: int
    kind: str
    samples: tuple[int, ...]

    @property
    def words(self) -> str:
        """`field 'image': 3 of 1024 values are NaN, in sample 5`."""
        verb = "is" if self.count == 1 else "are"
        numbers = ", ".join(map(str, self.samples[:_NAMED_SAMPLES])) + (", …" if len(self.samples) > _NAMED_SAMPLES else "")
        where = f", in sample{'s' if len(self.samples) > 1 else ''} {numbers}" if self.samples else ""
        text = f"{self.count} of {self.of} values {verb} {self.kind}{where}"
        return f"field {self.name}: {text}" if self.name else text


def bad_fields(batch: Any) -> list[BadField]:
    """The fields of a batch that hold NaN or Inf."""
    return [found for name, value in leaves(batch) if (found := _look_at(name, value)) is not None]


def look_at_input(batch: Any) -> str:
    """`finite`, or which values of which field are not; `unknown` where there is nothing that could be looked at."""
    fields = bad_fields(batch)
    if fields:
        return "; ".join(field.words for field in fields[:3]) + ("; …" if len(fields) > 3 else "")
    known = any(isinstance(value, (torch.Tensor, np.ndarray, float, int)) for _, value in leaves(batch))
    return "finite" if known else "unknown"


def _look_at(name: str, value: Any) -> BadField | None:
    tensor = _as_floats(value)
    if tensor is None or tensor.numel() == 0:
        return None
    finite = torch.isfinite(tensor)
    if bool(finite.all()):
        return None
    bad = ~finite
    has_nan = bool(torch.isnan(tensor).any())
    has_inf = bool(torch.isinf(tensor).any())
    samples: tuple[int, ...] = ()
    if tensor.dim() > 0:
        samples = tuple(bad.reshape(bad.shape[0], -1).any(1).nonzero().flatten().tolist())
    kind = "NaN or Inf" if has_nan and has_inf else "NaN" if has_nan else "Inf"
    return BadField(name, int(bad.sum()), tensor.numel(), kind, samples)


def _as_floats(value: Any) -> torch.Tensor | None:
    """The value as a tensor of floating numbers; None if it is none."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fc":
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    tensor: torch.Tensor = value.detach()
    if tensor.is_nested:
        tensor = tensor.values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor  # no isfinite for eight bits
