"""A copy of a training's state in host memory: the one way in which states are copied, for snapshots and for checkpoints.

All tensors go into one block of memory that is reused. From a GPU the copies run in the training's own stream: whatever the
script does next to its tensors, also through `.data` where nobody sees it, runs after them on the device. The host does not
wait.
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

_ALIGNMENT = 64  # bytes; where the tensors of one dtype begin in a block


class Source(NamedTuple):
    """A tensor of the training; `checked` if it must be finite."""

    tensor: torch.Tensor
    checked: bool
    spec: Any = None  # of a sharded tensor: which part of the whole this is


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
    """The place of each tensor in a block; those of one dtype that must be finite are side by side, to be checked as one."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.shapes = shapes_of(sources)
        self.offsets = [0] * len(sources)
        self.checked: list[tuple[torch.dtype, int, int]] = []
        kinds: dict[tuple[bool, torch.dtype], list[int]] = {}
        for number, source in enumerate(sources):
            kinds.setdefault((source.checked, source.tensor.dtype), []).append(number)
        end = 0
        for (checked, dtype), numbers in kinds.items():
            begin = end = -(-end // _ALIGNMENT) * _ALIGNMENT
            for number in numbers:
                self.offsets[number] = end
                end += sources[number].tensor.numel() * dtype.itemsize
            if checked and dtype.is_floating_point:
                self.checked.append((dtype, begin, end))
        self.size = end


def shapes_of(sources: Sequence[Source]) -> list[Shape]:
    """What decides the layout of these tensors."""
    return [(s.tensor.dtype, s.tensor.shape, s.tensor.stride(), s.checked) for s in sources]


# Memory


class Block:
    """Host memory for one copy of a state; pinned if it is for a GPU and the system allows it."""

    def __init__(self, size: int, *, pinned: bool) -> None:
        self.memory: npt.NDArray[np.uint8] = np.empty(max(size, 1), np.uint8)
        self.memory.fill(0)  # so that the pages exist before the training has to wait for them
        self.size, self.pinned = size, pinned and pin(self.memory)
        self._address = self.memory.ctypes.data  # asking for it takes an import, and the interpreter may be ending
        self._views: list[torch.Tensor] = []
        self.layout: Layout | None = None

    def views(self, layout: Layout) -> list[torch.Tensor]:
        """The host tensors for a layout. Each has a storage of its own, so that saving one does not save the block."""
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
        """Whether all values that must be finite are; one thread, and never long without letting others run."""
        assert self.layout is not None
        return all(not count_non_finite(self.memory[begin:end], dtype) for dtype, begin, end in self.layout.checked)

    def release(self) -> None:
        """Give the memory back. No copy from or to it may be running."""
        if self.pinned:
            self.pinned = False
            unpin(self._address)
        self._views, self.layout = [], None

    def __del__(self) -> None:
        if getattr(self, "pinned", False):
            self.release()


class BlockPool:
    """Blocks for snapshots: made ahead in another thread, reused, and never more than fit; `off` if there is memory for none."""

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
        self.count, self.being_made, self.off = 0, 0, False
        self._run_later, self._warn, self._lock = run_later, warn, lock

    def capacity(self, size: int) -> int:
        """How many snapshots of that size are kept: fewer if memory is short."""
        if self.memory_limit is None:
            self.memory_limit = snapshot_memory()
        capacity = min(self.keep, self.memory_limit // max(1, size))
        if capacity < 1 and not self.off:
            self.off = True
            self._warn(
                f"No snapshots are kept: one takes {size / 1e9:.2f} GB and {self.memory_limit / 1e9:.2f} GB of host memory "
                "may be used. Roll-backs can only use checkpoints on disk."
            )
        return capacity

    def make_one(self, size: int, *, pinned: bool) -> None:
        """Have a block made in the background."""
        with self._lock:
            self.being_made += 1

        def make() -> None:
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
                self.being_made -= 1

        self._run_later(make)

    def take(self, size: int, *, pinned: bool) -> Block:
        """A free block that is large enough, or a new one."""
        with self._lock:
            while self.free:
                block = self.free.pop()
                if block.size >= size:
                    return block
                block.release()
                self.count -= 1
            self.count += 1
        return Block(size, pinned=pinned)

    def give_back(self, block: Block, *, in_use: bool) -> None:
        """A snapshot was dropped. A block that someone still reads is not reused: it is freed when its reader is done."""
        if in_use:
            self.count -= 1
        else:
            self.free.append(block)

    def release_all(self) -> None:
        """Give the memory of the free blocks back, and make no more."""
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
    """A state at one moment. Without a block it is no copy but the training's own memory, as there was none for a copy."""

    tree: Tree
    hosts: list[torch.Tensor]
    checked: list[bool]  # which must be finite
    specs: list[Any]  # of sharded tensors: which part of the whole this rank has
    block: Block | None
    running: list[DeviceCopies]

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(host.nbytes for host in self.hosts)

    def wait(self) -> None:
        """Wait until the copies are done; not in the training thread."""
        for copies in self.running:
            copies.end.synchronize()

    def done(self) -> bool:
        """Whether the copies are done; does not wait."""
        return all(copies.end.query() for copies in self.running)

    def seconds(self) -> float:
        """How long the copies held the training's stream, once they are done."""
        return max((copies.seconds() for copies in self.running), default=0.0)

    def non_finite(self) -> dict[int, int]:
        """The tensors that must be finite and are not, by number, with how many of their values are not."""
        if self.block is not None and self.block.is_finite():
            return {}
        counts = {number: count(self.hosts[number]) for number, checked in enumerate(self.checked) if checked}
        return {number: bad for number, bad in counts.items() if bad}


class HostCopier:
    """Copies states that mostly have the same layout."""

    def __init__(self) -> None:
        self._layout: Layout | None = None

    def size(self, live_state: LiveState) -> int:
        """Bytes that a block for this state needs."""
        return self._layout_of(live_state).size

    def copy(self, live_state: LiveState, block: Block | None) -> HostCopy:
        """Copy a state into a block that nobody uses. Nothing that happens to the training afterwards changes the copy."""
        sources = live_state.sources
        checked = [source.checked and source.tensor.is_floating_point() for source in sources]
        specs = [source.spec for source in sources]
        if block is None:
            return HostCopy(live_state.tree, [source.tensor for source in sources], checked, specs, None, [])
        hosts = block.views(self._layout_of(live_state))
        return HostCopy(live_state.tree, hosts, checked, specs, block, copy_out([source.tensor for source in sources], hosts))

    def _layout_of(self, live_state: LiveState) -> Layout:
        if self._layout is None or self._layout.shapes != shapes_of(live_state.sources):
            self._layout = Layout(live_state.sources)
        return self._layout


def copy_out(tensors: Sequence[torch.Tensor], hosts: Sequence[torch.Tensor]) -> list[DeviceCopies]:
    """Copy the training's tensors to the host, in the training's own streams; what may still be running is returned."""
    running: list[DeviceCopies] = []
    for device, numbers in _by_device(tensors):
        pairs = [hosts[n] for n in numbers], [tensors[n] for n in numbers]
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

    Into `.data`, which has a version counter of its own: a graph that waits for its backward pass must not see a change.
    """
    for _, numbers in _by_device(targets):
        torch._foreach_copy_([targets[n].data for n in numbers], [hosts[n] for n in numbers], non_blocking=True)


def _by_device(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.device, list[int]]]:
    devices: dict[torch.device, list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor.numel():
            devices.setdefault(tensor.device, []).append(number)
    yield from devices.items()


def _is_dense(size: torch.Size, stride: tuple[int, ...]) -> bool:
    """Whether the values fill their memory without gaps, in whatever order: then they are copied as they are."""
    expected = 1
    for step, length in sorted(zip(stride, size, strict=True)):
        if length != 1:
            if step != expected:
                return False
            expected *= length
    return True


def available_memory(limits: Limits | None = None) -> int:
    """Bytes that can be allocated without swapping: of the machine, and of the container that the process runs in."""
    limits = limits or read_limits()
    of_machine = _of_machine()
    return max(0, min(of_machine, limits.memory - (limits.memory_used or 0))) if limits.memory is not None else of_machine


def snapshot_memory(fraction: float = 0.2) -> int:
    """Bytes that all snapshots of this rank may use: a fraction of what is available, divided among the ranks here."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(available_memory() * fraction) // max(1, int(ranks) if ranks.isdigit() else 1)


def pin(memory: npt.NDArray[np.uint8]) -> bool:
    """Register memory with the driver; False if the system does not allow it. It must be unpinned before it is freed.

    Not torch's own pinned memory: after a kernel has failed, freeing that aborts the process, and an error that Python printed
    in a traceback would end in SIGABRT.
    """
    try:
        return int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - without pinned memory the copies are slower, and that is all
        return False


def unpin(address: int) -> None:
    """Unregister it; no copy from or to it may be running."""
    with contextlib.suppress(Exception):  # at exit the driver may be gone before us
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def pinned_zeros(length: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector of zeros in pinned memory of its own; it is unpinned when nobody holds it any more."""
    memory = np.frombuffer(mmap.mmap(-1, max(1, length) * dtype.itemsize), np.uint8)  # whole pages: no other memory is in them
    if not pin(memory):
        return torch.zeros(length, dtype=dtype, device="cpu", pin_memory=True)
    weakref.finalize(memory, unpin, memory.ctypes.data).atexit = False
    return torch.frombuffer(memory, dtype=dtype, count=length) if length else torch.zeros(0, dtype=dtype, device="cpu")


def _of_machine() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 << 30
