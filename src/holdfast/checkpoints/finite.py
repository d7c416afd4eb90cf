"""Count the numbers of a stretch of memory that are not finite, a part at a time: each stays in the processor's cache."""

from __future__ import annotations

import torch

from holdfast.checkpoints.numbers import LAYOUTS, Bytes, count, is_finite

_AT_ONCE = 4 << 20  # bytes


def count_non_finite(memory: Bytes, dtype: torch.dtype) -> int:
    """How many numbers are NaN or infinite; of whole numbers none."""
    layout = LAYOUTS.get(str(dtype).removeprefix("torch."))
    if layout is None:
        return 0
    parts = (memory[at : at + _AT_ONCE] for at in range(0, memory.size, _AT_ONCE))
    return sum(count(part, layout).all for part in parts if not is_finite(part, layout))
