"""Measure what the first steps of a training need: memory at its peak, what stays, what each sample adds, loader workers.

`holdfast plan` runs a script a few times with this inside, each time with another batch size. After the last step the process
ends at once: nothing is trained, nothing is saved. On a GPU the allocator's own peak is read; without one, the resident memory
of the process.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.inside.discovery import find_live_objects, find_roots
from holdfast.inside.taps.registry import Patches

VARIABLE = "HOLDFAST_PLAN"
_LOADER = inspect.signature(DataLoader.__init__)


def begin() -> None:
    """Called when torch is imported."""
    asked = json.loads(os.environ[VARIABLE])
    if asked["precision"] == "bf16":
        for device in ("cuda", "cpu"):
            torch.set_autocast_enabled(device, True)
            torch.set_autocast_dtype(device, torch.bfloat16)
    Measure(asked).install()


class Measure:
    """Counts samples and reads memory at the end of each step."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._file, self._steps = Path(asked["file"]), int(asked["steps"])
        self._batch, self._workers = asked["batch"], asked["workers"]
        self._saved = SavedForBackward() if asked["activations"] else None
        self._optimizer: Any = None
        self._step = self._samples = self._batch_bytes = 0
        self._shape: list[int] = []
        self._own_batch: int | None = None  # what the script asked for
        self._own_workers = 0
        self._pid = os.getpid()

    def install(self) -> None:
        """Hang in."""
        patches = Patches()
        patches.replace(DataLoader, "__init__", self._make_loader)
        patches.replace(_BaseDataLoaderIter, "__next__", self._next_batch)
        register_optimizer_step_post_hook(self._after_step)
        if self._saved is not None:
            self._saved.listen()
        start_peak()

    def _make_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            given = dict(_LOADER.bind(loader, *args, **kwargs).arguments)
            if given.get("batch_sampler") is None and given.get("batch_size", 1) is not None:
                self._own_batch = self._own_batch or int(given.get("batch_size", 1))
                if self._batch:
                    given["batch_size"] = self._batch
            self._own_workers = max(self._own_workers, int(given.get("num_workers", 0)))
            if self._workers is not None:
                given["num_workers"] = self._workers
                if not self._workers:
                    for name in ("prefetch_factor", "persistent_workers"):
                        given.pop(name, None)
            original(**given)

        return __init__

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            batch = original(iterator)
            if torch.is_grad_enabled():
                self._count(batch)
            return batch

        return __next__

    def _count(self, batch: Any) -> None:
        tensors = list(_tensors(batch))
        if tensors:
            self._samples += len(tensors[0]) if tensors[0].dim() else 1
            self._batch_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
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
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = [value for one in optimizer.state.values() for value in one.values() if isinstance(value, torch.Tensor)]
        row: dict[str, Any] = {
            "step": self._step,
            "samples": self._samples,
            "shape": self._shape,
            "batch_bytes": self._batch_bytes,
            "own_batch": self._own_batch,
            "own_workers": self._own_workers,
            "parameters": _bytes(parameters),
            "gradients": _bytes([one.grad for one in parameters if one.grad is not None]),
            "optimizer": _bytes(state),
            "others": _bytes(self._other_weights(parameters)),
            **self._memory(parameters),
            **host_memory(),
        }
        if self._saved is not None:
            row["activations"] = self._saved.take()
        return row

    def _other_weights(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Parameters and buffers of the model that the optimizer does not hold."""
        held = {id(parameter) for parameter in parameters}
        roots = find_roots(find_live_objects().modules, parameters) if self._step == 0 else []
        if roots:
            self._rest = [one for root in roots for one in (*root.parameters(), *root.buffers()) if id(one) not in held]
        return getattr(self, "_rest", [])

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
        start_peak()
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for number in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(number)

    def _write(self, row: dict[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _tensors(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        for part in batch.values():
            yield from _tensors(part)
    elif isinstance(batch, list | tuple):
        for part in batch:
            yield from _tensors(part)


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


_PROC = Path("/proc/self")


def start_peak() -> None:
    """Let the peak begin again; where the system cannot, it stays the highest so far."""
    with contextlib.suppress(OSError):
        (_PROC / "clear_refs").write_text("5")


def resident_peak() -> int:
    """Bytes that were resident at most since `start_peak`."""
    try:
        return _field(_PROC / "status", "VmHWM:") * 1024
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def host_memory() -> dict[str, Any]:
    """Resident memory of this process, and what each of its children holds alone."""
    try:
        children = [int(word) for task in (_PROC / "task").iterdir() for word in (task / "children").read_text().split()]
        own = _field(_PROC / "status", "VmRSS:") * 1024
    except (OSError, IndexError, ValueError):
        return {"host": resident_peak(), "workers": []}
    return {"host": own, "workers": [held for held in map(_held_alone, children) if held]}


def _held_alone(pid: int) -> int:
    """Bytes that would be free if the process were not there."""
    try:
        file = Path(f"/proc/{pid}/smaps_rollup")
        return 1024 * (_field(file, "Private_Clean:") + _field(file, "Private_Dirty:"))
    except (OSError, IndexError, ValueError):
        return 0


def _field(file: Path, name: str) -> int:
    return int(file.read_text().split(name)[1].split()[0])


class SavedForBackward:
    """Bytes that are kept inside the model's repeated blocks, and outside of them; each storage once."""

    def __init__(self) -> None:
        self._blocks: dict[type, int] = {}
        self._inside: list[nn.Module] = []
        self._clear()

    def listen(self) -> None:
        """Hear of every tensor that is kept, and of the blocks that are being computed."""
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)
        torch.autograd.graph.saved_tensors_hooks(self._keep, _give_back).__enter__()

    def take(self) -> dict[str, int]:
        """The bytes of the step that is over: all, the largest block's, and the blocks' inputs."""
        told = {
            "saved": self._saved,
            "in_blocks": sum(self._of_block.values()),
            "largest_block": max(self._of_block.values(), default=0),
            "block_inputs": self._inputs,
            "blocks": len(self._of_block),
        }
        self._clear()
        return told

    def _clear(self) -> None:
        self._saved = self._inputs = 0
        self._seen: set[int] = set()
        self._of_block: dict[int, int] = {}

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if not self._inside and torch.is_grad_enabled() and _is_block(module):
            self._inside.append(module)
            self._of_block.setdefault(id(module), 0)
            self._inputs += sum(one.numel() * one.element_size() for one in inputs if isinstance(one, torch.Tensor))

    def _leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._inside and self._inside[-1] is module:
            self._inside.pop()

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, nn.Parameter) or not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return tensor
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen and not (tensor.is_leaf and tensor.requires_grad):
            self._seen.add(storage.data_ptr())
            self._saved += storage.nbytes()
            if self._inside:
                self._of_block[id(self._inside[-1])] += storage.nbytes()
        return tensor


def _give_back(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _is_block(module: nn.Module) -> bool:
    """A part that is worth computing again: one of several children, with children and parameters of its own."""
    return any(True for _ in module.children()) and any(True for _ in module.parameters()) and module in _repeated()


_KNOWN: list[set[nn.Module]] = []


def _repeated() -> set[nn.Module]:
    """The modules of lists and sequences of at least two alike, found once."""
    if not _KNOWN:
        from holdfast.inside.discovery import find_live_objects

        found: set[nn.Module] = set()
        for parent in find_live_objects().modules:
            if isinstance(parent, nn.ModuleList | nn.Sequential) and len(parent) > 1:
                kinds = [type(child) for child in parent]
                found |= {child for child in parent if kinds.count(type(child)) > 1}
        _KNOWN.append(found)
    return _KNOWN[0]
