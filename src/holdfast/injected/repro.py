"""Write down what the first steps of a training compute, as digests: batches, outputs of modules, losses, gradients, weights.

`holdfast repro` runs a script twice with this inside and compares the two files. A line for each step, as it ends; after the
last one the process ends at once, whatever the script had in mind.
"""

from __future__ import annotations

import datetime
import hashlib
import inspect
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
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.inside.discovery import find_live_objects, find_roots, named
from holdfast.inside.seeding import ask_for_determinism, seed
from holdfast.inside.taps.registry import Patches

VARIABLE = "HOLDFAST_REPRO"
_MOST_OUTPUTS = 2000  # of modules in one step


def begin() -> None:
    """Called when torch is imported: hold still what is asked for, and listen."""
    asked = json.loads(os.environ[VARIABLE])
    patches = Patches()
    for name in asked["steady"]:
        STEADYING[name](patches)
    if int(os.environ.get("RANK", "0")) == 0:
        Record(Path(asked["file"]), steps=asked["steps"], digests=asked["digests"]).install(patches)


class Record:
    """What was computed since the last step; without `digests` only how long each step took."""

    def __init__(self, file: Path, *, steps: int, digests: bool) -> None:
        self._file, self._steps, self._digests = file, steps, digests
        self._optimizer: Any = None
        self._names: dict[int, str] = {}
        self._step, self._begun = 0, time.perf_counter()
        self._clear()

    def install(self, patches: Patches) -> None:
        """Hang in."""
        self._pid = os.getpid()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        if self._digests:
            patches.replace(_BaseDataLoaderIter, "__next__", self._next_batch)
            patches.replace(torch.autograd, "backward", self._backward)
            register_module_forward_hook(self._forward)

    def _clear(self) -> None:
        self._batches: list[list[Any]] = []
        self._outputs: list[tuple[nn.Module, str]] = []
        self._losses: list[str] = []
        self._random: dict[str, str] = {}
        self._weights: list[list[str]] = []
        self._gradients: list[list[str]] = []

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            if not self._random:
                self._random = generators()
            batch = original(iterator)
            if torch.is_grad_enabled():
                self._batches += [[name, digest(part), digest_of_samples(part)] for name, part in tensors_in(batch)]
            return batch

        return __next__

    def _forward(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled() and len(self._outputs) < _MOST_OUTPUTS:
            self._outputs += [(module, digest(part)) for _, part in tensors_in(output)]

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._losses += [digest(part) for _, part in tensors_in(tensors)]
            return original(tensors, *args, **kwargs)

        return backward

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._digests:
            return
        if self._optimizer is None:
            self._find_names(optimizer)
            self._weights = self._of_parameters(lambda parameter: parameter)
        self._gradients += self._of_parameters(lambda parameter: parameter.grad)

    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if os.getpid() != self._pid or self._optimizer not in (None, optimizer):
            return
        self._optimizer = optimizer
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        self._write(time.perf_counter() - self._begun)
        self._step += 1
        self._clear()
        if self._step >= self._steps:
            os._exit(0)
        self._begun = time.perf_counter()

    def _find_names(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        roots = find_roots(find_live_objects().modules, parameters)
        self._optimizer = optimizer
        self._parameters = dict(named(roots, "parameters")) or {str(i): one for i, one in enumerate(parameters)}
        self._names = {id(module): name or type(module).__name__ for name, module in named(roots, "modules")}

    def _of_parameters(self, get: Callable[[torch.Tensor], torch.Tensor | None]) -> list[list[str]]:
        found = ((name, get(parameter)) for name, parameter in self._parameters.items())
        return [[name, digest(tensor)] for name, tensor in found if tensor is not None]

    def _write(self, seconds: float) -> None:
        after = self._of_parameters(lambda parameter: parameter) if self._digests else []
        outputs = [[self._names.get(id(module), type(module).__name__), told] for module, told in self._outputs]
        row = {
            "step": self._step,
            "seconds": seconds,
            "random": self._random,
            "weights": self._weights,
            "batch": self._batches,
            "output": outputs,
            "loss": [["loss", told] for told in self._losses],
            "gradient": self._gradients,
            "updated": after,
        }
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def digest(tensor: torch.Tensor) -> str:
    """The bytes of a tensor, its shape and kind."""
    plain = _plain(tensor)
    told = hashlib.blake2b(f"{tuple(plain.shape)} {plain.dtype}".encode(), digest_size=8)
    told.update(_bytes(plain))
    return told.hexdigest()


def digest_of_samples(tensor: torch.Tensor) -> str:
    """The rows of a batch whatever their order: tells another order from other contents."""
    plain = _plain(tensor)
    if plain.dim() == 0:
        return digest(tensor)
    rows = sorted(hashlib.blake2b(_bytes(row), digest_size=8).hexdigest() for row in plain)
    return hashlib.blake2b(" ".join(rows).encode(), digest_size=8).hexdigest()


def tensors_in(thing: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a batch or an output, and where in it."""
    if isinstance(thing, torch.Tensor):
        yield name, thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from tensors_in(value, f"{name}[{key!r}]")
    elif isinstance(thing, list | tuple):
        for index, value in enumerate(thing):
            yield from tensors_in(value, f"{name}[{index}]")


def generators() -> dict[str, str]:
    """The state of each global generator."""
    numbers = np.random.get_state(legacy=False)
    return {
        "torch": digest(torch.get_rng_state()),
        "numpy": _text(str(numbers["state"]["key"].tobytes()) + str(numbers["state"]["pos"])),
        "random": _text(str(random.getstate())),
    }


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return plain.resolve_conj().resolve_neg().cpu().contiguous()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _text(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "worker_init_fn")
_NOON = 1_700_000_000.0


def steady_seed(patches: Patches) -> None:
    """Seed all generators before the script does anything, and later those that it makes without a seed."""
    seed(0, deterministic=False)

    def seeded(original: Any) -> Callable[..., Any]:
        return lambda number=None: original(0 if number is None else number)

    patches.replace(np.random, "default_rng", seeded)


def steady_kernels(_patches: Patches) -> None:
    """Deterministic kernels, and one thread: sums are added in one order."""
    ask_for_determinism()
    torch.set_num_threads(1)


def determinism(_patches: Patches) -> None:
    """Deterministic kernels alone, to measure what they cost."""
    ask_for_determinism()


def steady_time(patches: Patches) -> None:
    """A clock that gives the same readings in each run: every look is a millisecond later."""
    ticks = itertools.count()

    def reading(_original: Any) -> Callable[[], float]:
        return lambda: _NOON + next(ticks) / 1000

    class SteadyDate(datetime.datetime):
        """`datetime.now` by the same clock."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> SteadyDate:
            return cls.fromtimestamp(time.time(), tz)

    patches.replace(time, "time", reading)
    patches.replace(time, "time_ns", lambda _original: lambda: int(time.time() * 1e9))
    datetime.datetime = SteadyDate  # type: ignore[misc]


def steady_workers(patches: Patches) -> None:
    """No loader workers: samples are made one after the other, in this process."""

    arguments_of = inspect.signature(DataLoader.__init__)

    def make(original: Any) -> Callable[..., None]:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            given = {**arguments_of.bind(loader, *args, **kwargs).arguments, "num_workers": 0}
            original(**{name: value for name, value in given.items() if name not in _OF_WORKERS})

        return __init__

    patches.replace(DataLoader, "__init__", make)


STEADYING: dict[str, Callable[[Patches], None]] = {
    "seed": steady_seed,
    "kernels": steady_kernels,
    "determinism": determinism,
    "time": steady_time,
    "workers": steady_workers,
}
