"""Norms and finiteness of gradients that lie in host memory: all of them, at every step, in as few calls as can be.

A norm is finite exactly when every value in the tensor is, except for values so large that their square overflows;
those are looked at again in double precision before they are called non-finite.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Numbers = npt.NDArray[Any]
_SMALL = 16384  # values; below that, copying tensors together is cheaper than a call for each
_COPIED_AT_MOST = 65536  # values in all
_flatten = torch._C._nn.flatten_dense_tensors


@dataclass(slots=True)
class GradientStats:
    """What was read of a set of gradients; `each` is there on sampled steps and when something is not finite."""

    norm: float
    non_finite: int = 0  # tensors that hold NaN or Inf
    each: PerParameter | None = None

    def only_non_finite(self) -> GradientStats:
        """The same, with the numbers of only those gradients that are not finite."""
        bad = self.each.only(self.each.non_finite > 0) if self.each is not None and self.non_finite else None
        return GradientStats(self.norm, self.non_finite, bad)


@dataclass(slots=True)
class PerParameter:
    """One number per gradient; `names` are codes of the parameters' names."""

    names: Numbers
    norms: Numbers
    maxima: Numbers
    non_finite: Numbers  # values that are NaN or Inf; -1 where there are some and their number is not known

    def only(self, chosen: Any) -> PerParameter:
        """The chosen ones."""
        return PerParameter(self.names[chosen], self.norms[chosen], self.maxima[chosen], self.non_finite[chosen])


def is_plain(gradient: torch.Tensor) -> bool:
    """Whether a gradient is an ordinary dense tensor, to be read as it is."""
    return type(gradient) is torch.Tensor and not gradient.is_sparse and not gradient.is_complex()


def values_of(gradient: torch.Tensor) -> torch.Tensor:
    """The plain tensor that holds a gradient's numbers: this rank's shard, a sparse tensor's values, complex as real."""
    local = getattr(gradient, "_local_tensor", None)
    if local is not None:
        gradient = local
    if gradient.is_sparse:
        gradient = gradient.coalesce()._values()  # a row may be in it several times
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


class HostPlan:
    """How to read one set of gradients, worked out once: which are small, which large, which of another kind."""

    def __init__(self, gradients: list[torch.Tensor]) -> None:
        single = [gradient.dtype is torch.float32 and is_plain(gradient) for gradient in gradients]
        small = [gradient.numel() <= _SMALL for gradient in gradients]
        self._few = all(single) and sum(gradient.numel() for gradient in gradients) <= _COPIED_AT_MOST
        self._small = [i for i, (s, f) in enumerate(zip(small, single, strict=True)) if s and f]
        self._large = [i for i, (s, f) in enumerate(zip(small, single, strict=True)) if not s and f]
        self._other = [i for i, f in enumerate(single) if not f]

    def norm(self, gradients: list[torch.Tensor]) -> float:
        """Norm of all gradients together. A few small ones are copied into one tensor: fewer calls."""
        if self._few:
            together = _flatten(gradients)
            return math.sqrt(together.dot(together).item())
        norms: list[torch.Tensor] = []
        if self._large:
            norms += torch._foreach_norm([gradients[i] for i in self._large])
        if self._small:
            norms.append(torch.linalg.vector_norm(_flatten([gradients[i] for i in self._small])))
        norms += [_exact_norm(values_of(gradients[i])) for i in self._other]
        return float(torch.linalg.vector_norm(torch.stack(norms)).item())


def read_each_on_host(gradients: list[torch.Tensor], names: list[int]) -> GradientStats:
    """Read the gradients one by one: norms, largest values, and how many values are not finite."""
    details = _details([values_of(gradient) for gradient in gradients], names)
    norm = float(np.sqrt(np.square(details.norms).sum()))
    return GradientStats(norm, int((details.non_finite > 0).sum()), details)


def _exact_norm(gradient: torch.Tensor, order: float = 2.0) -> torch.Tensor:
    """Norm in single precision at least; of half precision the squares would overflow."""
    wide = gradient.dtype in (torch.float32, torch.float64)
    norm: torch.Tensor = torch.linalg.vector_norm(gradient, order, dtype=None if wide else torch.float32).float()
    return norm


def _details(gradients: list[torch.Tensor], names: list[int]) -> PerParameter:
    norms, maxima = _each_norm(gradients, 2.0), _each_norm(gradients, math.inf)
    non_finite = np.zeros(len(gradients), np.int64)
    for position in np.flatnonzero(~np.isfinite(norms)):
        gradient = gradients[position]
        non_finite[position] = gradient.numel() - int(torch.isfinite(gradient).sum())
        if non_finite[position] == 0:  # only its square overflowed
            norms[position] = torch.linalg.vector_norm(gradient.cpu(), dtype=torch.float64).item()
    return PerParameter(np.asarray(names, np.int64), norms, maxima, non_finite)


def _each_norm(gradients: list[torch.Tensor], order: float) -> Numbers:
    """Norm of each tensor, in one call where all are alike. The largest value of an empty tensor is 0."""
    if all(gradient.dtype is torch.float32 and gradient.numel() for gradient in gradients):
        norms = list(torch._foreach_norm(gradients, order))
    else:
        norms = [_exact_norm(gradient, order if gradient.numel() else 2.0) for gradient in gradients]
    return torch.stack(norms).cpu().double().numpy()  # in this order: Apple's GPUs have no double precision


try:
    from holdfast.inside.gradients import _by_address
except ImportError:  # no compiler where Holdfast was installed, or not installed at all: run from its source
    _by_address = None  # type: ignore[assignment]

_VALUES_AT_MOST = 1 << 18  # beyond that, torch's threads are worth their calls
_GRAD = "_ZNK3c1010TensorImpl4gradEv"  # c10::TensorImpl::grad() const
_LOOKS = ("layout", "device_type", "device_index", "dtype", "dim", "sizes", "strides", "data_ptr")


def _can_read_by_address() -> bool:
    """Whether the compiled part is there, and finds what it calls in the libraries that torch has loaded."""
    if not hasattr(_by_address, "use"):
        return False
    folder, ending = Path(torch.__file__).parent / "lib", "dylib" if sys.platform == "darwin" else "so"
    try:
        core, torch_itself = (ctypes.CDLL(str(folder / f"lib{name}.{ending}")) for name in ("c10", "torch_cpu"))
        functions = [core[_GRAD], *(torch_itself[f"aoti_torch_get_{name}"] for name in _LOOKS)]
    except (OSError, AttributeError):
        return False
    addresses = tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)
    example = torch.zeros(1)
    return all(addresses) and _by_address.use(example, example._cdata, addresses, _VALUES_AT_MOST)


AVAILABLE = _can_read_by_address()


def _unknown(*_: Any) -> Any:
    return None


# The value of a plain single-precision scalar in host memory; None for anything else
quick_value: Callable[[Any], float | None] = _by_address.scalar if AVAILABLE else _unknown
# The norm of all gradients of these parameters; negative if there are none, None if they are of another kind or too many
quick_norm: Callable[[list[Any]], float | None] = _by_address.norm if AVAILABLE else _unknown
# Write down where the gradients of all these parameters lie on a GPU; false unless all are there, of these sizes and kinds
quick_addresses: Callable[..., bool] = _by_address.addresses if AVAILABLE else _unknown
launch_by_address: Any = getattr(_by_address, "launch", None)  # of a kernel; needs nothing of torch
