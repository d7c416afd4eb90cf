"""The quickest way to a loss, to the norm of small gradients in host memory, and to the addresses of gradients on a GPU.

By address, where the compiled part was built. Each function says None or False where another way has to be taken; without the
compiled part, always.
"""

from __future__ import annotations

import math
from typing import Any

import torch

try:
    from holdfast.inside.gradients import _by_address
except ImportError:  # no compiler where Holdfast was installed, or not installed at all: run from its source
    _by_address = None  # type: ignore[assignment]

_VALUES_AT_MOST = 1 << 18  # beyond that, torch's threads are worth their calls
_TABLE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)  # torch 2.10 and newer
_Tensor = torch.Tensor
AVAILABLE = _by_address is not None and _TABLE is not None


def _unknown(*_: Any) -> None:
    return None


_scalar = _by_address.scalar if AVAILABLE else _unknown
_squares = _by_address.squares if AVAILABLE else _unknown
_addresses = _by_address.addresses if AVAILABLE else _unknown


def quick_value(tensor: Any) -> float | None:
    """The value of a plain single-precision scalar in host memory."""
    return _scalar(tensor, _Tensor, _TABLE)


def quick_norm(parameters: list[Any]) -> float | None:
    """Norm of all gradients of these parameters; negative if there are none."""
    squares = _squares(parameters, _Tensor, _TABLE, _VALUES_AT_MOST)
    return math.sqrt(squares) if squares is not None and squares >= 0.0 else squares


def quick_addresses(parameters: list[Any], gpu: int, sizes: Any, kinds: Any, addresses: bytearray) -> bool:
    """Write down where the gradients of all these parameters lie; False unless all are there, of these sizes and kinds."""
    return bool(_addresses(parameters, _Tensor, _TABLE, gpu, sizes, kinds, addresses))
