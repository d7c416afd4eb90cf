"""Walk through a batch, however it is nested: its values by field name, and which fields hold NaN or Inf."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

_MAX_DEPTH = 8
_SAMPLES_IN_TEXT, _FIELDS_IN_TEXT = 5, 3
SCALARS = (str, int, float, bool, bytes, type(None))


def leaves(batch: Any, path: str = "", depth: int = _MAX_DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield every value with its field name: `'image'`, `0`, `1.'mask'`; a bare tensor has an empty name."""
    if isinstance(batch, (torch.Tensor, np.ndarray, *SCALARS)) or depth == 0:
        yield path, batch
        return
    prefix = f"{path}." if path else ""
    for name, value in _children(batch):
        yield from leaves(value, f"{prefix}{name!r}", depth - 1)


def _children(batch: Any) -> Iterator[tuple[Any, Any]]:
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


def num_bytes(batch: Any) -> int:
    """Bytes of all tensors and arrays in it."""
    return sum(int(value.nbytes) for _, value in leaves(batch) if isinstance(value, (torch.Tensor, np.ndarray)))


@dataclasses.dataclass(frozen=True, slots=True)
class NonFiniteField:
    """A field with NaN or Inf: how many values, of which kind, in which samples (first dimension)."""

    name: str
    count: int
    numel: int
    kind: str
    samples: tuple[int, ...]

    def __str__(self) -> str:
        """`field 'image': 3 of 1024 values are NaN, in sample 5`."""
        verb = "is" if self.count == 1 else "are"
        text = f"{self.count} of {self.numel} values {verb} {self.kind}"
        if self.samples:
            more = ", …" if len(self.samples) > _SAMPLES_IN_TEXT else ""
            text += f", in sample{'s' if len(self.samples) > 1 else ''} "
            text += ", ".join(map(str, self.samples[:_SAMPLES_IN_TEXT])) + more
        return f"field {self.name}: {text}" if self.name else text


def non_finite_fields(batch: Any) -> list[NonFiniteField]:
    """The fields of a batch that hold NaN or Inf."""
    return [field for name, value in leaves(batch) if (field := _check(name, value)) is not None]


def input_status(batch: Any) -> str:
    """`finite`, a description of the non-finite fields, or `unknown` for a batch without numbers."""
    fields = non_finite_fields(batch)
    if fields:
        return "; ".join(map(str, fields[:_FIELDS_IN_TEXT])) + ("; …" if len(fields) > _FIELDS_IN_TEXT else "")
    has_numbers = any(isinstance(value, (torch.Tensor, np.ndarray, float, int)) for _, value in leaves(batch))
    return "finite" if has_numbers else "unknown"


def _check(name: str, value: Any) -> NonFiniteField | None:
    tensor = _as_float_tensor(value)
    if tensor is None or tensor.numel() == 0:
        return None
    bad = ~torch.isfinite(tensor)
    if not bool(bad.any()):
        return None
    kinds = [kind for kind, test in (("NaN", torch.isnan), ("Inf", torch.isinf)) if bool(test(tensor).any())]
    samples = bad.reshape(bad.shape[0], -1).any(1).nonzero().flatten().tolist() if tensor.dim() else ()
    return NonFiniteField(name, int(bad.sum()), tensor.numel(), " or ".join(kinds), tuple(samples))


def _as_float_tensor(value: Any) -> torch.Tensor | None:
    """The value as a floating-point or complex tensor; None for any other type."""
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
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor  # float8 has no isfinite
