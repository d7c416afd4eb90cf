"""Values that lie on a GPU: gathered there, copied to pinned memory behind the training's back, read when they are there.

Nothing here waits for the device. A step's numbers go into one buffer and one asynchronous copy; an event behind the
copy says when they have arrived, usually a step or two later. When every buffer is under way, the step's numbers are
left out rather than waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from holdfast.state.host_memory import pinned_zeros

_SLOTS = 32
Arrived = Callable[[npt.NDArray[Any] | None], None]


@dataclass(slots=True)
class _Underway:
    pinned: torch.Tensor | None
    event: Any
    arrived: Arrived


class Courier:
    """Carries numbers from one device to the host, in order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: list[torch.Tensor] = []
        self._made = 0
        self._underway: deque[_Underway] = deque()

    def send(self, values: Sequence[torch.Tensor], arrived: Arrived) -> None:
        """Start to carry vectors and scalars as one row of floats; `arrived` gets them later.

        It gets None if no buffer is free, or if a value is not this rank's alone to read.
        """
        known = [own for value in values if (own := own_values(value)) is not None]
        size = sum(value.numel() for value in known)
        pinned = self._buffer(size) if len(known) == len(values) else None
        if pinned is None:
            self._underway.append(_Underway(None, None, arrived))
            return
        row = torch.cat([value.reshape(-1).to(self.device, torch.float32, non_blocking=True) for value in known])
        pinned[:size].copy_(row, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        self._underway.append(_Underway(pinned[:size], event, arrived))

    def collect(self) -> None:
        """Hand over what has arrived; never waits."""
        while self._underway:
            first = self._underway[0]
            if first.event is not None and not first.event.query():
                return
            self._hand_over(self._underway.popleft())

    def wait(self) -> None:
        """Wait for all that is under way; for the end of a training only."""
        while self._underway:
            first = self._underway.popleft()
            if first.event is not None:
                first.event.synchronize()
            self._hand_over(first)

    def _hand_over(self, item: _Underway) -> None:
        if item.pinned is None:
            item.arrived(None)
            return
        item.arrived(item.pinned.numpy().astype(np.float64))
        base = item.pinned._base
        self._free.append(item.pinned if base is None else base)

    def _buffer(self, size: int) -> torch.Tensor | None:
        while self._free:
            buffer = self._free.pop()
            if buffer.numel() >= size:
                return buffer
            self._made -= 1
        if self._made >= _SLOTS:
            return None
        self._made += 1
        return pinned_zeros(size, torch.float32)


def own_values(value: torch.Tensor) -> torch.Tensor | None:
    """The plain tensor of a value; None of a distributed one that only several ranks together could tell."""
    local: torch.Tensor | None = getattr(value, "_local_tensor", None)
    if local is None:
        return value
    placements: Any = getattr(value, "placements", ())
    return local if all(placement.is_replicate() for placement in placements) else None
