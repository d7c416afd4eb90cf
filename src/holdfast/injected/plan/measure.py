"""Measure what the first steps of a training need: memory at its peak, what stays, what each sample adds, loader workers.

`holdfast plan` runs a script a few times with this inside, each time with another batch size. After the last step the process
ends at once: nothing is trained, nothing is saved. On a GPU the allocator's own peak is read; without one, the resident memory
of the process.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.injected.plan.host import host_memory, resident_peak, start_peak
from holdfast.injected.plan.saved import SavedForBackward
from holdfast.inside.discovery import find_live_objects, find_roots
from holdfast.inside.taps.patches import Patches

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
