"""A copy of a training's state in host memory that is used again for every save."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from holdfast.checkpoints.safetensors import count
from holdfast.errors import StorageError
from holdfast.inside.snapshots.host_copy import Block, Copier, Layout, Source, Underway, shapes_of
from holdfast.inside.snapshots.host_memory import available_memory
from holdfast.inside.snapshots.reading import Tree
from holdfast.inside.snapshots.state import Reading

_LEFT_FREE = 0.1  # of the memory that is available, when a copy is made


@dataclass(frozen=True, slots=True)
class HostState:
    """The state at one moment. `own` if it is no copy but the training's own memory, as there was none for a copy."""

    tree: Tree
    hosts: list[torch.Tensor]
    checked: list[bool]  # which must be finite
    underway: list[Underway]
    own: bool = False
    specs: tuple[Any, ...] = ()  # of sharded tensors: which part of the whole this rank has

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(host.nbytes for host in self.hosts)

    def arrive(self) -> None:
        """Wait until the copies are there; not in the training thread."""
        for copies in self.underway:
            copies.wait()

    def non_finite(self) -> dict[int, int]:
        """Numbers of the tensors that must be finite and are not, with how many numbers in each are bad."""
        counts = {number: count(self.hosts[number]) for number, checked in enumerate(self.checked) if checked}
        return {number: bad for number, bad in counts.items() if bad}


class HostMemory:
    """One block of memory, made when it is first needed or ahead of that; pinned for a GPU."""

    def __init__(self) -> None:
        self._copier, self._layout, self._block = Copier(), None, None  # type: tuple[Copier, Layout | None, Block | None]
        self._making = threading.Lock()

    def make(self, reading: Reading, run_later: Callable[[Callable[[], None]], None]) -> None:
        """Have the memory for such a state made in another thread."""
        size, pin = self._layout_of(reading.sources).size, _on_gpu(reading.sources)
        if self._block is None and _fits(size):
            run_later(partial(self._make_block, size, pin=pin))

    def copy(self, reading: Reading) -> HostState:
        """Copy a state; nothing that is done to the training afterwards gets into the copy. The block must not be in use."""
        layout, sources = self._layout_of(reading.sources), reading.sources
        checked = [source.checked and source.tensor.is_floating_point() for source in sources]
        specs = tuple(source.spec for source in sources)
        self._make_block(layout.size, pin=_on_gpu(sources))
        block = self._block
        if block is None:
            if _on_gpu(sources):
                raise StorageError(f"There is no host memory for a copy of {layout.size / 1e9:.2f} GB.", fix="free some")
            return HostState(reading.tree, [source.tensor for source in sources], checked, [], own=True, specs=specs)
        hosts = block.lay_out(layout)
        at_once = [source._replace(steady=False) for source in sources]  # in the training's own stream
        return HostState(reading.tree, hosts, checked, self._copier.copy_out(at_once, hosts), specs=specs)

    def release(self) -> None:
        """Give the memory back."""
        with self._making:
            if self._block is not None:
                self._block.release()
                self._block = None

    def _layout_of(self, sources: Sequence[Source]) -> Layout:
        if self._layout is None or self._layout.shapes != shapes_of(sources):
            self._layout = Layout(sources)
        return self._layout

    def _make_block(self, size: int, *, pin: bool) -> None:
        """Have a block of that size, if there is memory for it."""
        with self._making:
            if self._block is not None and self._block.size < size:
                self._block.release()
                self._block = None
            if self._block is None and _fits(size):
                with contextlib.suppress(MemoryError):
                    self._block = Block(size, pin=pin)


def _fits(size: int) -> bool:
    return size < (1.0 - _LEFT_FREE) * available_memory()


def _on_gpu(sources: Sequence[Source]) -> bool:
    return any(source.tensor.is_cuda for source in sources)


def metrics_now(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as they are now: those on a GPU are copied there, in order, and become numbers when they have arrived."""
    return {name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in metrics.items()}


def as_numbers(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Metrics as a manifest has them. One that is not finite, or no number, is nothing to go by."""
    numbers: dict[str, float | None] = {}
    for name, value in metrics.items():
        try:
            numbers[str(name)] = float(value) if math.isfinite(value) else None
        except (TypeError, ValueError, RuntimeError, OverflowError):
            numbers[str(name)] = None
    return numbers
