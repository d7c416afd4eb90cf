"""Write down what the first steps of a training compute, as digests: batches, outputs of modules, losses, gradients, weights.

`holdfast repro` runs a script twice with this inside and compares the two files. A line for each step, as it ends; after the
last one the process ends at once, whatever the script had in mind.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.injected.repro.digest import digest, digest_of_samples, generators, tensors_in
from holdfast.injected.repro.steadying import STEADYING
from holdfast.inside.discovery import find_live_objects, find_roots, named
from holdfast.inside.taps.patches import Patches

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
