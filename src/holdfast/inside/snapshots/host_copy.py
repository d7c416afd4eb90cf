"""Copies of many tensors in host memory: one block, used again and again, filled behind the training's back where it can be.

From a GPU the copies run on a side stream. What only an optimizer changes is copied while the next forward pass already
runs, and the next update waits, on the device, until the copies are done. What forward passes and averages change is copied
in the training's own stream. The host never waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from holdfast.checkpoints.finite import count_non_finite
from holdfast.inside import pinned

_ALIGNED = 64  # bytes; where a kind of values begins in the block


class Source(NamedTuple):
    """A tensor of the training: `steady` if only updates change it, `checked` if it must be finite."""

    tensor: torch.Tensor
    steady: bool
    checked: bool
    spec: Any = None  # of a sharded tensor: which part of the whole this is


Shape = tuple[torch.dtype, torch.Size, tuple[int, ...], bool]


class Layout:
    """Where in a block each tensor lies; values of one kind that must be finite lie side by side, to be checked as one."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.shapes = shapes_of(sources)
        self.offsets = [0] * len(sources)
        self.checked: list[tuple[torch.dtype, int, int]] = []
        kinds: dict[tuple[bool, torch.dtype], list[int]] = {}
        for number, source in enumerate(sources):
            kinds.setdefault((source.checked, source.tensor.dtype), []).append(number)
        end = 0
        for (checked, dtype), numbers in kinds.items():
            begin = end = -(-end // _ALIGNED) * _ALIGNED
            for number in numbers:
                self.offsets[number] = end
                end += sources[number].tensor.numel() * dtype.itemsize
            if checked and dtype.is_floating_point:
                self.checked.append((dtype, begin, end))
        self.size = end


def shapes_of(sources: Sequence[Source]) -> list[Shape]:
    """What decides the layout of these tensors."""
    return [(s.tensor.dtype, s.tensor.shape, s.tensor.stride(), s.checked) for s in sources]


class Block:
    """Host memory for one copy of everything; pinned if it is for a GPU and the system allows it."""

    def __init__(self, size: int, *, pin: bool) -> None:
        self.memory: npt.NDArray[np.uint8] = np.empty(max(size, 1), np.uint8)
        self.memory.fill(0)  # so that the pages are there before the training has to wait for them
        self.size, self.pinned = size, pin and pinned.pin(self.memory)
        self.views: list[torch.Tensor] = []
        self.layout: Layout | None = None

    def lay_out(self, layout: Layout) -> list[torch.Tensor]:
        """The host tensors for a layout. Each has a storage of its own, so that saving one does not save the block."""
        if self.layout is not layout:
            places = zip(layout.shapes, layout.offsets, strict=True)
            self.views, self.layout = [self._view(shape, offset) for shape, offset in places], layout
        return self.views

    def _view(self, shape: Shape, offset: int) -> torch.Tensor:
        dtype, size, stride, _ = shape
        count = size.numel()
        if count == 0:
            return torch.empty(size, dtype=dtype)
        flat = torch.frombuffer(self.memory, dtype=torch.uint8, count=count * dtype.itemsize, offset=offset).view(dtype)
        return flat.as_strided(size, stride) if _is_dense(size, stride) else flat.view(size)

    def is_finite(self) -> bool:
        """Whether all values that must be finite are; one thread, and never long without letting others run."""
        assert self.layout is not None
        return all(not count_non_finite(self.memory[begin:end], dtype) for dtype, begin, end in self.layout.checked)

    def release(self) -> None:
        """Give the memory back. Nothing may be copying from or to it any more."""
        if self.pinned:
            self.pinned = False
            pinned.unpin(self.memory.ctypes.data)
        self.views, self.layout = [], None

    def __del__(self) -> None:
        if getattr(self, "pinned", False):
            self.release()


class Copier:
    """Starts copies, and says when they are done."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, Any] = {}

    def copy_out(self, sources: Sequence[Source], hosts: Sequence[torch.Tensor]) -> list[Underway]:
        """Copy the training's tensors to the host tensors; what is still under way is returned, one for each GPU.

        Steady tensors must be kept until then (`Pending`): their memory would be given to others while it is copied. Not
        with `record_stream`: after a kernel has failed, freeing memory that has it aborts the process.
        """
        underway: list[Underway] = []
        for device, numbers in _by_device(sources):
            if device.type != "cuda":
                torch._foreach_copy_([hosts[n] for n in numbers], [sources[n].tensor for n in numbers])
                continue
            stream = self._streams.get(device)
            if stream is None:
                stream = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            now = [number for number in numbers if not sources[number].steady]
            later = [number for number in numbers if sources[number].steady]
            if now:
                torch._foreach_copy_([hosts[n] for n in now], [sources[n].tensor for n in now], non_blocking=True)
            stream.wait_stream(torch.cuda.current_stream(device))
            begin, end = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record(stream)
            if later:
                with torch.cuda.stream(stream):
                    torch._foreach_copy_([hosts[n] for n in later], [sources[n].tensor for n in later], non_blocking=True)
            end.record(stream)
            underway.append(Underway(device, begin, end))
        return underway


@dataclass(frozen=True, slots=True)
class Underway:
    """Copies from one GPU."""

    device: torch.device
    begin: Any
    end: Any

    def hold_back(self) -> None:
        """Have the training's stream wait, on the device, until the copies are done."""
        torch.cuda.current_stream(self.device).wait_event(self.end)

    def done(self) -> bool:
        """Whether the copies have arrived; does not wait."""
        return bool(self.end.query())

    def wait(self) -> None:
        """Wait for them; not in the training thread."""
        self.end.synchronize()

    def seconds(self) -> float:
        """How long the copies took, once they are done."""
        return float(self.begin.elapsed_time(self.end)) / 1000.0


def copy_in(hosts: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copy from the host into the training's tensors, in the training's stream.

    Into `.data`, which counts its changes apart: a graph that still waits for its backward pass must not find them changed.
    """
    for _, numbers in _by_device([Source(target, steady=True, checked=False) for target in targets]):
        torch._foreach_copy_([targets[n].data for n in numbers], [hosts[n] for n in numbers], non_blocking=True)


def _by_device(sources: Sequence[Source]) -> Iterator[tuple[torch.device, list[int]]]:
    devices: dict[torch.device, list[int]] = {}
    for number, source in enumerate(sources):
        if source.tensor.numel():
            devices.setdefault(source.tensor.device, []).append(number)
    yield from devices.items()


def _is_dense(size: torch.Size, stride: tuple[int, ...]) -> bool:
    """Whether the values fill their memory without holes, in whatever order: then they are copied as they lie."""
    expected = 1
    for step, length in sorted(zip(stride, size, strict=True)):
        if length != 1:
            if step != expected:
                return False
            expected *= length
    return True
