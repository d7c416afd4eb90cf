"""Measure the memory of a training's first steps: the peak, weights and optimizer state, activations, loader workers.

`holdfast plan` runs a script a few times with this injected, each time with another batch size. The process exits right after
the last step: nothing is saved. On a GPU the peak is the allocator's; on the host it is the resident memory of the process.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import resource
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.inside.discovery import find_live_objects, find_roots
from holdfast.inside.observers.batch_contents import leaves
from holdfast.inside.observers.memory import resident_of
from holdfast.inside.taps.registry import Patches
from holdfast.state.parameters import parameters_of

VARIABLE = "HOLDFAST_PLAN"
_LOADER_SIGNATURE = inspect.signature(DataLoader.__init__)


def begin() -> None:
    """Called when torch is imported."""
    request = json.loads(os.environ[VARIABLE])
    if request["precision"] == "bf16":
        for device in ("cuda", "cpu"):
            torch.set_autocast_enabled(device, True)
            torch.set_autocast_dtype(device, torch.bfloat16)
    Measure(request).install()


class Measure:
    """Counts samples, and reads memory after each step."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._file, self._steps = Path(request["file"]), int(request["steps"])
        self._batch_size, self._num_workers = request["batch"], request["workers"]
        self._saved = BlockActivations() if request["activations"] else None
        self._optimizer: Any = None
        self._step = self._samples = self._batch_bytes = 0
        self._shape: list[int] = []
        self._own_batch: int | None = None  # the script's own batch size
        self._own_workers = 0
        self._dataset_size: int | None = None  # None if the training data has no length
        self._others: list[torch.Tensor] = []
        self._pid = os.getpid()

    def install(self) -> None:
        """Install the hooks."""
        patches = Patches()
        patches.replace(DataLoader, "__init__", self._wrap_init)
        patches.replace(_BaseDataLoaderIter, "__next__", self._next_batch)
        register_optimizer_step_post_hook(self._after_step)
        if self._saved is not None:
            self._saved.install()
        reset_peak()

    def _wrap_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            arguments = dict(_LOADER_SIGNATURE.bind(loader, *args, **kwargs).arguments)
            if arguments.get("batch_sampler") is None and arguments.get("batch_size", 1) is not None:
                self._own_batch = self._own_batch or int(arguments.get("batch_size", 1))
                if self._batch_size:
                    arguments["batch_size"] = self._batch_size
            self._own_workers = max(self._own_workers, int(arguments.get("num_workers", 0)))
            if self._num_workers is not None:
                arguments["num_workers"] = self._num_workers  # 1 or more: other options may need workers
            original(**arguments)

        return __init__

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            batch = original(iterator)
            if torch.is_grad_enabled():
                self._count(batch)
                with contextlib.suppress(TypeError, NotImplementedError):
                    self._dataset_size = len(iterator._dataset)
            return batch

        return __next__

    def _count(self, batch: Any) -> None:
        tensors = [value for _, value in leaves(batch) if isinstance(value, torch.Tensor)]
        if tensors:
            self._samples += len(tensors[0]) if tensors[0].dim() else 1
            self._batch_bytes = _bytes(tensors)
            self._shape = list(tensors[0].shape[1:])

    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if os.getpid() != self._pid or self._optimizer not in (None, optimizer):
            return
        self._optimizer = optimizer
        self._write(self._row(optimizer))
        self._step += 1
        self._samples = 0
        if self._step >= self._steps:
            os._exit(0)
        self._reset()

    def _row(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        parameters = parameters_of(optimizer)
        state = [value for values in optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor)]
        row: dict[str, Any] = {
            "step": self._step,
            "samples": self._samples,
            "shape": self._shape,
            "batch_bytes": self._batch_bytes,
            "own_batch": self._own_batch,
            "own_workers": self._own_workers,
            "dataset_size": self._dataset_size,
            "parameters": _bytes(parameters),
            "gradients": _bytes([p.grad for p in parameters if p.grad is not None]),
            "optimizer": _bytes(state),
            "others": _bytes(self._other_weights(parameters)),
            **self._memory(parameters),
            **host_memory(),
        }
        if self._saved is not None:
            row["activations"] = self._saved.take()
        return row

    def _other_weights(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Parameters and buffers of the model that the optimizer does not update."""
        trained = {id(parameter) for parameter in parameters}
        if self._step == 0:
            roots = find_roots(find_live_objects().modules, parameters)
            self._others = [t for root in roots for t in (*root.parameters(), *root.buffers()) if id(t) not in trained]
        return self._others

    def _memory(self, parameters: list[torch.Tensor]) -> dict[str, Any]:
        devices = {parameter.device for parameter in parameters if parameter.is_cuda}
        if not devices:
            return {"device": "cpu", "peak": resident_peak()}
        (device, *_) = sorted(devices, key=str)
        torch.cuda.synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        return {
            "device": torch.cuda.get_device_name(device),
            "total": total,
            "used": total - free,
            "reserved_now": reserved,
            "peak": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.max_memory_reserved(device),
        }

    def _reset(self) -> None:
        reset_peak()
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)

    def _write(self, row: dict[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


_PROC = Path("/proc/self")


def reset_peak() -> None:
    """Reset the peak of the resident memory; does nothing where the system cannot."""
    with contextlib.suppress(OSError):
        (_PROC / "clear_refs").write_text("5")


def resident_peak() -> int:
    """The peak resident memory since `reset_peak`, in bytes."""
    try:
        return _field(_PROC / "status", "VmHWM:")
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def host_memory() -> dict[str, Any]:
    """Resident memory of this process, and private memory of each child: what its end would free."""
    workers: list[int] = []
    with contextlib.suppress(OSError, IndexError, ValueError):
        for child in [word for task in (_PROC / "task").iterdir() for word in (task / "children").read_text().split()]:
            file = Path(f"/proc/{child}/smaps_rollup")
            workers.append(_field(file, "Private_Clean:") + _field(file, "Private_Dirty:"))
    return {"host": resident_of(os.getpid()) or resident_peak(), "workers": workers}


def _field(file: Path, name: str) -> int:
    return 1024 * int(file.read_text().split(name)[1].split()[0])


class BlockActivations:
    """Bytes that autograd saves in the model's repeated blocks, which activation checkpointing would recompute."""

    def __init__(self) -> None:
        self._block: nn.Module | None = None  # the one being computed
        self._blocks: set[nn.Module] | None = None
        self._clear()

    def install(self) -> None:
        """Hook saved tensors and the forward passes of blocks."""
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)
        torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor).__enter__()

    def take(self) -> dict[str, int]:
        """The bytes of the last step: in all blocks, in the largest one, and of the blocks' inputs."""
        sizes = [*self._by_block.values()]
        taken = {
            "blocks": len(sizes),
            "in_blocks": sum(sizes),
            "largest_block": max(sizes, default=0),
            "block_inputs": self._inputs,
        }
        self._clear()
        return taken

    def _clear(self) -> None:
        self._inputs, self._seen = 0, set[int]()
        self._by_block: dict[nn.Module, int] = {}

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if self._block is None and torch.is_grad_enabled():
            if self._blocks is None:
                self._blocks = _repeated_blocks()
            if module in self._blocks:
                self._block = module
                self._by_block.setdefault(module, 0)
                self._inputs += _bytes(value for value in inputs if isinstance(value, torch.Tensor))

    def _leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._block is module:
            self._block = None

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        is_plain = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and not isinstance(tensor, nn.Parameter)
        if self._block is not None and is_plain and not (tensor.is_leaf and tensor.requires_grad):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._seen:  # each storage counts once
                self._seen.add(storage.data_ptr())
                self._by_block[self._block] += storage.nbytes()
        return tensor


def _repeated_blocks() -> set[nn.Module]:
    """Members of a ModuleList or Sequential that holds at least two of their type, with children and parameters."""
    repeated: set[nn.Module] = set()
    for parent in find_live_objects().modules:
        if isinstance(parent, nn.ModuleList | nn.Sequential):
            types = [type(child) for child in parent]
            repeated |= {child for child in parent if types.count(type(child)) > 1 and next(child.children(), None) is not None}
    return {block for block in repeated if next(block.parameters(), None) is not None}
