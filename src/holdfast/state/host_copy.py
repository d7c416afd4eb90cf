"""Copies of a training's state in host memory, for snapshots and checkpoints.

All tensors go into one block of memory that is reused. From a GPU the copies run in the training's own stream, so that whatever
the script does next to its tensors, even through `.data`, runs after them on the device. The host does not wait.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from holdfast.checkpoints.finite import count_non_finite
from holdfast.checkpoints.safetensors import count
from holdfast.environment.cgroup import Limits, read_limits
from holdfast.state.values import Tree

_ALIGNMENT = 64  # bytes, of the tensors of one dtype in a block


class Source(NamedTuple):
    """A tensor of the training; `checked` if it must be finite."""

    tensor: torch.Tensor
    checked: bool


@dataclass(frozen=True, slots=True)
class LiveState:
    """The state at one moment: the training's own tensors, and a tree of plain values with a `Ref` for each tensor."""

    sources: list[Source]
    tree: Tree

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(source.tensor.nbytes for source in self.sources)

    @property
    def on_gpu(self) -> bool:
        """Whether some tensors are on a GPU."""
        return any(source.tensor.is_cuda for source in self.sources)


Shape = tuple[torch.dtype, torch.Size, tuple[int, ...], bool]


class Layout:
    """The offset of each tensor in a block; checked tensors of one dtype are adjacent, to be checked as one."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.shapes = shapes_of(sources)
        self.offsets = [0] * len(sources)
        self.checked: list[tuple[torch.dtype, int, int]] = []
        kinds: dict[tuple[bool, torch.dtype], list[int]] = {}
        for index, source in enumerate(sources):
            kinds.setdefault((source.checked, source.tensor.dtype), []).append(index)
        end = 0
        for (checked, dtype), indices in kinds.items():
            begin = end = -(-end // _ALIGNMENT) * _ALIGNMENT
            for index in indices:
                self.offsets[index] = end
                end += sources[index].tensor.numel() * dtype.itemsize
            if checked and dtype.is_floating_point:
                self.checked.append((dtype, begin, end))
        self.size = end


def shapes_of(sources: Sequence[Source]) -> list[Shape]:
    """The properties that decide the layout."""
    return [(s.tensor.dtype, s.tensor.shape, s.tensor.stride(), s.checked) for s in sources]


# Memory


class Block:
    """Host memory for one copy of a state; pinned if it is for a GPU and the system allows it."""

    def __init__(self, size: int, *, pinned: bool) -> None:
        self.memory: npt.NDArray[np.uint8] = np.empty(max(size, 1), np.uint8)
        self.memory.fill(0)  # touch the pages now, not while the training waits
        self.size, self.pinned = size, pinned and pin(self.memory)
        self._address = self.memory.ctypes.data  # reading it later needs an import, and the interpreter may be exiting
        self._views: list[torch.Tensor] = []
        self.layout: Layout | None = None

    def views(self, layout: Layout) -> list[torch.Tensor]:
        """The host tensors for a layout, each with its own storage, so that saving one does not save the block."""
        if self.layout is not layout:
            places = zip(layout.shapes, layout.offsets, strict=True)
            self._views, self.layout = [self._view(shape, offset) for shape, offset in places], layout
        return self._views

    def _view(self, shape: Shape, offset: int) -> torch.Tensor:
        dtype, size, stride, _ = shape
        length = size.numel()
        if length == 0:
            return torch.empty(size, dtype=dtype)
        flat = torch.frombuffer(self.memory, dtype=torch.uint8, count=length * dtype.itemsize, offset=offset).view(dtype)
        return flat.as_strided(size, stride) if _is_dense(size, stride) else flat.view(size)

    def is_finite(self) -> bool:
        """Whether all checked values are finite; one thread, which often releases the GIL."""
        assert self.layout is not None
        return all(not count_non_finite(self.memory[begin:end], dtype) for dtype, begin, end in self.layout.checked)

    def release(self) -> None:
        """Release the memory. No copy from or to it may be running."""
        if self.pinned:
            self.pinned = False
            unpin(self._address)
        self._views, self.layout = [], None

    def __del__(self) -> None:
        if getattr(self, "pinned", False):
            self.release()


class BlockPool:
    """Blocks for snapshots: allocated ahead in the background and reused; `off` if there is no memory."""

    def __init__(
        self,
        keep: int,
        memory_limit: int | None,
        *,
        run_later: Callable[[Callable[[], None]], None],
        warn: Callable[[str], None],
        lock: threading.RLock,
    ) -> None:
        self.keep, self.memory_limit = keep, memory_limit
        self.free: list[Block] = []
        self.count, self.pending, self.off = 0, 0, False
        self._run_later, self._warn, self._lock = run_later, warn, lock

    def capacity(self, size: int) -> int:
        """How many snapshots of this size fit, at most `keep`."""
        if self.memory_limit is None:
            self.memory_limit = snapshot_memory()
        capacity = min(self.keep, self.memory_limit // max(1, size))
        if capacity < 1 and not self.off:
            self.off = True
            self._warn(
                f"No snapshots are kept: one takes {size / 1e9:.2f} GB and {self.memory_limit / 1e9:.2f} GB of host memory "
                "may be used. Rollbacks can only use checkpoints on disk."
            )
        return capacity

    def allocate(self, size: int, *, pinned: bool) -> None:
        """Allocate a block in the background."""
        with self._lock:
            self.pending += 1

        def run() -> None:
            try:
                block = Block(size, pinned=pinned)
                with self._lock:
                    if not self.off:
                        self.free.append(block)
                        self.count += 1
            except MemoryError:
                self.keep = self.count
                self.off = self.count == 0
                self._warn(f"Memory is short: {self.count} snapshots of {size / 1e9:.2f} GB are kept.")
            finally:
                self.pending -= 1

        self._run_later(run)

    def take(self, size: int, *, pinned: bool) -> Block:
        """A free block of sufficient size, or a new one."""
        with self._lock:
            while self.free:
                block = self.free.pop()
                if block.size >= size:
                    return block
                block.release()
                self.count -= 1
            self.count += 1
        return Block(size, pinned=pinned)

    def put(self, block: Block, *, in_use: bool) -> None:
        """Return the block of a dropped snapshot. One still in use is not reused, but freed after its reader."""
        if in_use:
            self.count -= 1
        else:
            self.free.append(block)

    def release_all(self) -> None:
        """Release the free blocks and allocate no more."""
        self.off = True
        with self._lock:
            free, self.free, self.count = self.free, [], 0
        for block in free:
            block.release()


# Copying


@dataclass(frozen=True, slots=True)
class DeviceCopies:
    """Copies from one GPU that may still be running."""

    begin: Any
    end: Any

    def seconds(self) -> float:
        """How long the copies took, once they are done."""
        return float(self.begin.elapsed_time(self.end)) / 1000.0


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copied state. Without a block it is the training's own memory, as there was none for a copy."""

    tree: Tree
    hosts: list[torch.Tensor]
    checked: list[bool]  # which must be finite
    block: Block | None
    running: list[DeviceCopies]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(host.nbytes for host in self.hosts)

    def wait(self) -> None:
        """Wait for the copies; not for the training thread."""
        for copies in self.running:
            copies.end.synchronize()

    def done(self) -> bool:
        """Whether the copies are done; does not wait."""
        return all(copies.end.query() for copies in self.running)

    def seconds(self) -> float:
        """How long the copies took in the training's stream, once they are done."""
        return max((copies.seconds() for copies in self.running), default=0.0)

    def non_finite(self) -> dict[int, int]:
        """The number of non-finite values of each checked tensor that has some, by index."""
        if self.block is not None and self.block.is_finite():
            return {}
        counts = {index: count(self.hosts[index]) for index, checked in enumerate(self.checked) if checked}
        return {index: bad for index, bad in counts.items() if bad}


class HostCopier:
    """Copies states, and keeps the layout while it stays the same."""

    def __init__(self) -> None:
        self._layout: Layout | None = None

    def size(self, live_state: LiveState) -> int:
        """Bytes that a block for this state needs."""
        return self._layout_of(live_state).size

    def copy(self, live_state: LiveState, block: Block | None) -> HostCopy:
        """Copy a state into an unused block; later changes of the training do not affect the copy."""
        sources = live_state.sources
        checked = [source.checked and source.tensor.is_floating_point() for source in sources]
        if block is None:
            return HostCopy(live_state.tree, [source.tensor for source in sources], checked, None, [])
        hosts = block.views(self._layout_of(live_state))
        return HostCopy(live_state.tree, hosts, checked, block, copy_out([source.tensor for source in sources], hosts))

    def _layout_of(self, live_state: LiveState) -> Layout:
        if self._layout is None or self._layout.shapes != shapes_of(live_state.sources):
            self._layout = Layout(live_state.sources)
        return self._layout


def copy_out(tensors: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor]) -> list[DeviceCopies]:
    """Copy the training's tensors to the host, in its own streams; returns the copies that may still run."""
    running: list[DeviceCopies] = []
    for device, indices in _by_device(tensors):
        pairs = [hosts[i] for i in indices], [tensors[i] for i in indices]
        if device.type != "cuda":
            torch._foreach_copy_(*pairs)
            continue
        stream = torch.cuda.current_stream(device)
        begin, end = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record(stream)
        torch._foreach_copy_(*pairs, non_blocking=True)
        end.record(stream)
        running.append(DeviceCopies(begin, end))
    return running


def copy_in(hosts: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copy from the host into the training's tensors, in the training's own streams.

    Into `.data`, whose version counter is its own: a graph that awaits its backward pass must not see a change.
    """
    for _, indices in _by_device(targets):
        torch._foreach_copy_([targets[i].data for i in indices], [hosts[i] for i in indices], non_blocking=True)


def _by_device(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.device, list[int]]]:
    devices: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor.numel():
            devices.setdefault(tensor.device, []).append(index)
    yield from devices.items()


def _is_dense(size: torch.Size, stride: tuple[int, ...]) -> bool:
    """Whether the values fill their memory without gaps, in any order of dimensions."""
    expected = 1
    for step, length in sorted(zip(stride, size, strict=True)):
        if length != 1:
            if step != expected:
                return False
            expected *= length
    return True


def available_memory(limits: Limits | None = None) -> int:
    """Bytes that can be allocated without swapping, on the machine and in its container."""
    limits = limits or read_limits()
    available = _machine_memory()
    return max(0, min(available, limits.memory - (limits.memory_used or 0))) if limits.memory is not None else available


def snapshot_memory(fraction: float = 0.2) -> int:
    """Bytes for all snapshots of this rank: a fraction of the available memory, shared by the local ranks."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(available_memory() * fraction) // max(1, int(ranks) if ranks.isdigit() else 1)


def pin(memory: npt.NDArray[np.uint8]) -> bool:
    """Register memory with the driver; False if that is not allowed. It must be unpinned before it is freed.

    Not torch's pinned memory: freeing that after a failed kernel aborts the process, and the traceback would end in SIGABRT.
    """
    try:
        return int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - without pinned memory the copies are only slower
        return False


def unpin(address: int) -> None:
    """Unregister memory; no copy from or to it may be running."""
    with contextlib.suppress(Exception):  # the driver may exit first
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def pinned_zeros(length: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector of zeros in its own pinned memory, unpinned with its last reference."""
    memory = np.frombuffer(mmap.mmap(-1, max(1, length) * dtype.itemsize), np.uint8)  # whole pages, shared with nothing else
    if not pin(memory):
        return torch.zeros(length, dtype=dtype, device="cpu", pin_memory=True)
    weakref.finalize(memory, unpin, memory.ctypes.data).atexit = False
    return torch.frombuffer(memory, dtype=dtype, count=length) if length else torch.zeros(0, dtype=dtype, device="cpu")


def _machine_memory() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 << 30
