"""Record digests of what the first steps of a training compute: batches, module outputs, losses, gradients, weights.

`holdfast repro` runs a script twice with this injected and compares the two files, which have a line per step. The process
exits right after the last step.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.inside.control.restarted import cap_workers
from holdfast.inside.discovery import find_live_objects, find_roots, named
from holdfast.inside.observers.batch_contents import leaves
from holdfast.inside.seeding import ask_for_determinism, seed
from holdfast.inside.taps.registry import Taps
from holdfast.state.parameters import parameters_of

VARIABLE = "HOLDFAST_REPRO"
_MAX_OUTPUTS = 2000  # of modules per step


def begin() -> None:
    """Called when torch is imported: fix the requested sources of randomness, and record."""
    request = json.loads(os.environ[VARIABLE])
    patches = Taps()
    for name in request["steady"]:
        FIXES[name](patches)
    if int(os.environ.get("RANK", "0")) == 0:
        Record(Path(request["file"]), steps=request["steps"], digests=request["digests"]).install(patches)


class Record:
    """Digests of what was computed since the last step; without `digests` only step times."""

    def __init__(self, file: Path, *, steps: int, digests: bool) -> None:
        self._file, self._steps, self._digests = file, steps, digests
        self._optimizer: Any = None
        self._names: dict[int, str] = {}
        self._step, self._start = 0, time.perf_counter()
        self._clear()

    def install(self, patches: Taps) -> None:
        """Install the hooks."""
        self._pid = os.getpid()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        if self._digests:
            patches.replace(_BaseDataLoaderIter, "__next__", self._next_batch)
            patches.replace(torch.autograd, "backward", self._backward)
            register_module_forward_hook(self._forward)

    def _clear(self) -> None:
        self._row: dict[str, Any] = {"random": {}, "weights": [], "batch": [], "output": [], "loss": [], "gradient": []}
        self._outputs: list[tuple[nn.Module, str]] = []

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            self._row["random"] = self._row["random"] or digest_generators()
            batch = original(iterator)
            if torch.is_grad_enabled():
                self._row["batch"] += [[name, digest(part), digest_of_samples(part)] for name, part in tensors_in(batch)]
            return batch

        return __next__

    def _forward(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled() and len(self._outputs) < _MAX_OUTPUTS:
            self._outputs += [(module, digest(part)) for _, part in tensors_in(output)]

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._row["loss"] += [["loss", digest(part)] for _, part in tensors_in(tensors)]
            return original(tensors, *args, **kwargs)

        return backward

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._digests:
            return
        if self._optimizer is None:
            self._find_names(optimizer)
            self._row["weights"] = self._digests_of(lambda parameter: parameter)
        self._row["gradient"] += self._digests_of(lambda parameter: parameter.grad)

    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if os.getpid() != self._pid or self._optimizer not in (None, optimizer):
            return
        self._optimizer = optimizer
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        self._write(time.perf_counter() - self._start)
        self._step += 1
        self._clear()
        if self._step >= self._steps:
            os._exit(0)
        self._start = time.perf_counter()

    def _find_names(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = parameters_of(optimizer)
        roots = find_roots(find_live_objects().modules, parameters)
        self._optimizer = optimizer
        self._parameters = dict(named(roots, "parameters")) or {str(i): p for i, p in enumerate(parameters)}
        self._names = {id(module): name or type(module).__name__ for name, module in named(roots, "modules")}

    def _digests_of(self, get: Callable[[torch.Tensor], torch.Tensor | None]) -> list[list[str]]:
        tensors = ((name, get(parameter)) for name, parameter in self._parameters.items())
        return [[name, digest(tensor)] for name, tensor in tensors if tensor is not None]

    def _write(self, seconds: float) -> None:
        self._row["output"] = [[self._names.get(id(module), type(module).__name__), output] for module, output in self._outputs]
        updated = self._digests_of(lambda parameter: parameter) if self._digests else []
        row = {"step": self._step, "seconds": seconds, **self._row, "updated": updated}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def digest(tensor: torch.Tensor) -> str:
    """A digest of a tensor's values, shape and dtype."""
    host = _to_host(tensor)
    return _hash(f"{tuple(host.shape)} {host.dtype}".encode() + _bytes(host))


def digest_of_samples(tensor: torch.Tensor) -> str:
    """A digest of the samples in any order, to tell a new order from new contents."""
    host = _to_host(tensor)
    return digest(tensor) if host.dim() == 0 else _hash(" ".join(sorted(_hash(_bytes(row)) for row in host)).encode())


def tensors_in(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a batch or an output with their names."""
    return ((name, leaf) for name, leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def digest_generators() -> dict[str, str]:
    """The state of each global random generator."""
    state = np.random.get_state(legacy=False)["state"]
    return {
        "torch": digest(torch.get_rng_state()),
        "numpy": _hash(f"{state['key'].tobytes()}{state['pos']}".encode()),
        "random": _hash(str(random.getstate()).encode()),
    }


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg().cpu().contiguous()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


_START_TIME = 1_700_000_000.0


def fix_seed(patches: Taps) -> None:
    """Seed all generators before the script runs, and those that it later makes without a seed."""
    seed(0, deterministic=False)

    def seeded(original: Any) -> Callable[..., Any]:
        return lambda seed=None: original(0 if seed is None else seed)

    patches.replace(np.random, "default_rng", seeded)


def fix_kernels(_patches: Taps) -> None:
    """Use deterministic kernels and one thread, so that sums have one order."""
    ask_for_determinism()
    torch.set_num_threads(1)


def use_deterministic(_patches: Taps) -> None:
    """Use deterministic kernels alone, to measure their cost."""
    ask_for_determinism()


def fix_time(patches: Taps) -> None:
    """Replace the clock: each reading is a millisecond after the one before."""
    ticks = itertools.count()

    def reading(_original: Any) -> Callable[[], float]:
        return lambda: _START_TIME + next(ticks) / 1000

    class FixedDatetime(datetime.datetime):
        """`datetime.now` with the same clock."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> FixedDatetime:
            return cls.fromtimestamp(time.time(), tz)

    patches.replace(time, "time", reading)
    patches.replace(time, "time_ns", lambda _original: lambda: int(time.time() * 1e9))
    datetime.datetime = FixedDatetime  # type: ignore[misc]


def fix_workers(patches: Taps) -> None:
    """Load samples in this process, without workers."""
    cap_workers(patches, 0)


FIXES: dict[str, Callable[[Taps], None]] = {
    "seed": fix_seed,
    "kernels": fix_kernels,
    "determinism": use_deterministic,
    "time": fix_time,
    "workers": fix_workers,
}
