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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from holdfast.checkpoints.safetensors import count
from holdfast.environment.cgroup import Limits, read_limits
from holdfast.state.values import Tree

_ALIGNMENT = 64  # bytes, of a tensor in a block


class Source(NamedTuple):
    """A tensor of the training; `checked` if it must be finite. `spec` is the place of a shard in the whole."""

    tensor: torch.Tensor
    checked: bool
    spec: Any = None


@dataclass(frozen=True, slots=True)
class LiveState:
    """The state at one moment: the training's own tensors, and a tree of plain values with a `Ref` for each tensor."""

    sources: list[Source]
    tree: Tree

    @property
    def size(self) -> int:
        """Bytes that a block for all tensors needs."""
        return sum(_aligned(source.tensor.nbytes) for source in self.sources)

    @property
    def on_gpu(self) -> bool:
        """Whether some tensors are on a GPU."""
        return any(source.tensor.is_cuda for source in self.sources)


# Memory


class Block:
    """Host memory for one copy of a state; pinned if it is for a GPU and the system allows it."""

    def __init__(self, size: int, *, pinned: bool) -> None:
        self.memory = _private_memory(max(size, 1))
        self.memory.fill(0)  # touch the pages now, not while the training waits
        self.size, self.pinned = size, pinned and pin(self.memory)
        self.process = os.getpid()  # a forked one does not have the memory
        self.users = 0  # threads that read it: it must not be reused
        self._address = self.memory.ctypes.data  # reading it later needs an import, and the interpreter may be exiting
        self._shapes: list[tuple[torch.dtype, torch.Size, tuple[int, ...]]] = []
        self._views: list[torch.Tensor] = []

    def views(self, sources: Sequence[Source]) -> list[torch.Tensor]:
        """The host tensors for these sources, each with its own storage, so that saving one does not save the block."""
        shapes = [(source.tensor.dtype, source.tensor.shape, source.tensor.stride()) for source in sources]
        if shapes != self._shapes:
            self._shapes, self._views, end = shapes, [], 0
            for source in sources:
                self._views.append(self._view(source.tensor, end))
                end += _aligned(source.tensor.nbytes)
        return self._views

    def _view(self, tensor: torch.Tensor, offset: int) -> torch.Tensor:
        """A view with the strides of a tensor, if those leave no gaps: it is copied in one piece then."""
        like = torch.empty_like(tensor, device="meta")
        if not tensor.numel():
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        flat = torch.frombuffer(self.memory, dtype=torch.uint8, count=tensor.nbytes, offset=offset).view(tensor.dtype)
        return flat.as_strided(like.shape, like.stride())

    def release(self) -> None:
        """Release the memory. No copy from or to it may be running."""
        if self.pinned:
            self.pinned = False
            unpin(self._address)
        self._shapes, self._views = [], []

    def __del__(self) -> None:
        if getattr(self, "pinned", False):
            self.release()


# Copying


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copied state. Without a block it is the training's own memory, as there was none for a copy."""

    tree: Tree
    hosts: list[torch.Tensor]
    checked: list[bool]  # which must be finite
    specs: list[Any]  # the place of a shard in the whole
    block: Block | None
    running: list[tuple[Any, Any]]  # the begin and end of copies from a GPU

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(host.nbytes for host in self.hosts)

    def wait(self) -> None:
        """Wait for the copies; not for the training thread."""
        for _, end in self.running:
            end.synchronize()

    def seconds(self) -> float:
        """How long the copies took in the training's stream, once they are done."""
        return max((begin.elapsed_time(end) / 1000.0 for begin, end in self.running), default=0.0)

    def non_finite(self) -> dict[int, int]:
        """The number of non-finite values of each checked tensor that has some, by index."""
        counts = {number: count(self.hosts[number]) for number, checked in enumerate(self.checked) if checked}
        return {number: bad for number, bad in counts.items() if bad}


@dataclass(slots=True, eq=False)
class Snapshot:
    """The state before the update of `step`. `verified` is None until it is checked."""

    step: int
    copy: HostCopy
    block: Block
    verified: bool | None = None
    bad: int = 0  # tensors that are not finite
    path: Path | None = None  # of its checkpoint, if written
    checking: threading.Lock = field(default_factory=threading.Lock)

    def verify(self) -> bool:
        """Wait for the copies, and check that they are finite."""
        with self.checking:
            if self.verified is None:
                self.copy.wait()
                self.bad = len(self.copy.non_finite())
                self.verified = not self.bad
            return self.verified


def copy_state(live_state: LiveState, block: Block | None) -> HostCopy:
    """Copy a state into an unused block; later changes of the training do not affect the copy.

    The copies from a GPU run in the training's own stream, and may still run on return.
    """
    tensors = [source.tensor for source in live_state.sources]
    checked = [source.checked and source.tensor.is_floating_point() for source in live_state.sources]
    specs = [source.spec for source in live_state.sources]
    if block is None:
        return HostCopy(live_state.tree, tensors, checked, specs, None, [])
    hosts, running = block.views(live_state.sources), []
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
        running.append((begin, end))
    return HostCopy(live_state.tree, hosts, checked, specs, block, running)


def copy_in(hosts: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copy from the host into the training's tensors, in the training's own streams.

    Into `.data`, whose version counter is its own: a graph that awaits its backward pass must not see a change.
    """
    for device, indices in _by_device(targets):
        pairs = [targets[i].data for i in indices], [hosts[i] for i in indices]
        torch._foreach_copy_(*pairs, non_blocking=device.type == "cuda")  # elsewhere nothing waits before a block is used again


def _by_device(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[torch.device, list[int]]]:
    devices: dict[torch.device, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor.numel():
            devices.setdefault(tensor.device, []).append(index)
    yield from devices.items()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def available_memory(limits: Limits | None = None) -> int:
    """Bytes that can be allocated without swapping, on the machine and in its container."""
    limits = limits or read_limits()
    available = _machine_memory()
    return max(0, min(available, limits.memory - (limits.memory_used or 0))) if limits.memory is not None else available


def snapshot_memory(fraction: float = 0.2) -> int:
    """Bytes for all snapshots of this rank: a fraction of the available memory, shared by the local ranks."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(available_memory() * fraction) // max(1, int(ranks) if ranks.isdigit() else 1)


def _private_memory(size: int) -> npt.NDArray[np.uint8]:
    """Memory that processes forked by this one do not have.

    A fork copies pinned pages at once, and all others when they are next written: with 400 MB of snapshots each loader worker
    took half a second to start.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_DONTFORK"):  # Linux
        memory.madvise(mmap.MADV_DONTFORK)
    return np.frombuffer(memory, np.uint8)


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
