"""Time and memory of each module, forward and backward, in sampled steps.

Hooks are put on the modules for one step and taken off again, so an ordinary step pays nothing. The backward pass is
timed at the autograd nodes: a module's starts when its output's node is about to run and ends when its input's is.
Full backward hooks would do as well, but they insert nodes into the graph and forbid in-place operations behind a module.
The inside of a compiled module is one whole and is timed as one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from holdfast.inside.capture.memory import ProcessMemory, gpu_memory
from holdfast.inside.discovery import named

WHOLE_MODEL = "(model)"
_MEMORY_EVERY = 0.001  # seconds; modules that end closer together share one reading
_HOOK_SECONDS = 4e-6  # what torch takes to call the hooks of one pass, measured by benchmarks/overhead.py
Mark = Callable[[], Any]


class ModuleTime(NamedTuple):
    """One finished pass through one module; on a GPU `start` and `end` are CUDA events."""

    module: str
    stage: str
    start: Any
    end: Any
    gpu_allocated: int | None
    host_rss: int


class ModuleSampler:
    """Hooks for one sampled step. Put on with `start`, taken off with `stop`, which gives the times."""

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self._handles: list[Any] = []
        self._done: list[ModuleTime] = []
        self._open: dict[int, list[Any]] = {}
        self._backward: dict[int, tuple[str, Any]] = {}
        self._device: torch.device | None = None
        self._mark: Mark = time.perf_counter
        self._cost = 0.0

    @property
    def running(self) -> bool:
        """Whether hooks are in place."""
        return bool(self._handles)

    def start(self, roots: list[nn.Module], device: torch.device) -> None:
        """Put hooks on every module of the model."""
        self._device = device if device.type == "cuda" else None
        self._mark = _cuda_mark if device.type == "cuda" else time.perf_counter
        whole: list[str] = []
        for name, module in named(roots, "modules"):
            if any(name.startswith(outer) for outer in whole) or isinstance(module, torch.jit.ScriptModule):
                continue
            if type(module).__name__ == "OptimizedModule":
                whole.append(name + "." if name else "")
            self._hook(name or WHOLE_MODEL, module)

    def stop(self) -> list[ModuleTime]:
        """Take the hooks off and give what was timed, in the order it ended."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        return self.take()

    def take(self) -> list[ModuleTime]:
        """Give what was timed and go on; hooks that stay spare the cost of putting them back."""
        self.end_backward()
        done, self._done = self._done, []
        self._open.clear()
        return done

    def take_cost(self) -> float:
        """Seconds that the hooks themselves took since the last call."""
        cost, self._cost = self._cost, 0.0
        return cost

    def end_backward(self) -> None:
        """Close the modules whose input needs no gradient: they end with the whole backward pass."""
        if self._backward:
            end = self._mark()
            for name, begin in self._backward.values():
                self._finish(name, "backward", begin, end)
            self._backward.clear()

    def _hook(self, name: str, module: nn.Module) -> None:
        key = id(module)
        mark = self._mark
        opened = self._open

        def before(_module: nn.Module, _inputs: Any) -> None:
            if torch.is_grad_enabled():
                opened.setdefault(key, []).append(mark())

        def after(_module: nn.Module, inputs: Any, output: Any) -> None:
            begun = opened.get(key)
            if begun:
                self._finish(name, "forward", begun.pop(), mark())
                self._follow_backward(name, inputs, output)

        self._handles.append(module.register_forward_pre_hook(before))
        self._handles.append(module.register_forward_hook(after))

    def _follow_backward(self, name: str, inputs: Any, output: Any) -> None:
        produced = _first_node(output)
        if produced is None:
            return
        key, mark, running = object(), self._mark, self._backward

        def begin(_gradients: Any) -> None:
            running[id(key)] = (name, mark())

        def end(_gradients: Any) -> None:
            begun = running.pop(id(key), None)
            if begun is not None:
                self._finish(name, "backward", begun[1], mark())

        produced.register_prehook(begin)  # goes with the graph: nothing to take off
        consumed = _first_node(inputs)
        if consumed is not None and consumed is not produced:
            consumed.register_prehook(end)

    def _finish(self, name: str, stage: str, start: Any, end: Any) -> None:
        now = time.perf_counter()
        allocated = gpu_memory(self._device)[0] if self._device is not None else None
        self._done.append(ModuleTime(name, stage, start, end, allocated, self._memory.read_at_most_every(_MEMORY_EVERY, now)))
        self._cost += time.perf_counter() - now + _HOOK_SECONDS


def _cuda_mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds_between(start: Any, end: Any) -> float | None:
    """Length of a pass; None if the GPU has not reached its end yet."""
    if isinstance(start, float):
        return float(end - start)
    return float(start.elapsed_time(end)) / 1000.0 if end.query() else None


def _first_node(value: Any, depth: int = 3) -> Any:
    """The autograd node of the first tensor in a nested value that has one."""
    if isinstance(value, torch.Tensor):
        return value.grad_fn
    if depth:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
        for part in parts:
            node = _first_node(part, depth - 1)
            if node is not None:
                return node
    return None
