"""Time and memory of each module, forward and backward, in sampled steps.

Hooks are registered for one step and removed again, so that an ordinary step pays nothing. The backward pass is timed at the
autograd nodes, from the module's output to its input: full backward hooks would insert nodes into the graph and forbid in-place
operations after a module. A compiled module is timed as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from holdfast.inside.discovery import named
from holdfast.inside.observers.batch_contents import leaves
from holdfast.inside.observers.memory import ProcessMemory, gpu_memory

WHOLE_MODEL = "(model)"
FORWARD, BACKWARD = "forward", "backward"
_MEMORY_EVERY = 0.001  # seconds; modules that end closer together share one reading
_compiling = torch.compiler.is_compiling
_MAX_PASSES = 50_000  # between two updates: a script that only runs forward from here on must not fill the memory
_CALL_OVERHEAD = 2.0  # a hook costs about twice what it can measure itself: the rest is the call

# One finished pass: module, stage, start, end (on a GPU these are CUDA events), bytes on the GPU, resident bytes
ModuleTime = tuple[str, str, Any, Any, "int | None", int]


class ModuleSampler:
    """Hooks for one sampled step: `start` registers them, `stop` removes them and returns the times."""

    def __init__(self, memory: ProcessMemory, on_trouble: Callable[[str, BaseException], None]) -> None:
        self.running = False
        self.paused = False  # in evaluation, until the model is back in training mode or the step is over
        self.half = False  # whether a module returned float16, which overflows beyond 65504
        self._memory, self._on_trouble = memory, on_trouble
        self._has_failed = False
        self._handles: list[Any] = []
        self._modules: list[_TimedModule] = []
        self._finished: list[ModuleTime] = []
        self.in_backward: dict[_BackwardPass, None] = {}  # in their order
        self.round = 0
        self.cost = 0.0  # seconds that registering and running the hooks took
        self._device: torch.device | None = None
        self.now: Callable[[], Any] = time.perf_counter

    def start(self, roots: list[nn.Module], device: torch.device) -> None:
        """Register hooks on every module of the models."""
        if self._has_failed or self.running:
            return
        start = time.perf_counter()
        self._device = device if device.type == "cuda" else None
        self.now = _cuda_event if device.type == "cuda" else time.perf_counter
        compiled: list[str] = []
        for name, module in named(roots, "modules"):
            if any(not outer or name == outer or name.startswith(outer + ".") for outer in compiled):
                continue
            if type(module).__name__ == "OptimizedModule":
                compiled.append(name)
            elif module._compiled_call_impl is not None or isinstance(module, torch.jit.ScriptModule):
                compiled.append(name)  # a hook would be compiled in, and recompiled each time
                continue
            timed = _TimedModule(name or WHOLE_MODEL, self)
            self._modules.append(timed)
            self._handles.append(module.register_forward_pre_hook(timed.before))
            self._handles.append(module.register_forward_hook(timed.after))
        self.running = True
        self.cost += time.perf_counter() - start

    def stop(self) -> list[ModuleTime]:
        """Remove the hooks and return the times, in the order in which the passes ended."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.running = False
        times = self.take()
        self._modules.clear()
        return times

    def take(self) -> list[ModuleTime]:
        """Return the times and keep the hooks: registering them at every step would cost more."""
        self.end_backward()
        self.round += 1
        self.paused = False
        for timed in self._modules:
            timed.starts.clear()
        finished, self._finished = self._finished, []
        return finished

    def end_backward(self) -> None:
        """End the modules whose input needs no gradient: they end with the whole backward pass."""
        for backward in list(self.in_backward):
            backward.ends(None)

    def may_time(self) -> bool:
        """Whether to time another forward pass."""
        return not self.paused and len(self._finished) < _MAX_PASSES

    def finish(self, name: str, stage: str, start: Any, end: Any) -> None:
        """Keep one finished pass."""
        if self._device is not None:
            self._finished.append((name, stage, start, end, gpu_memory(self._device)[0], self._memory.latest))
        else:
            self._finished.append((name, stage, start, end, None, self._memory.read_at_most_every(_MEMORY_EVERY, end)))

    def give_up(self, error: Exception) -> None:
        """Stop timing modules in this training: an output could not be inspected."""
        self._has_failed = True
        self._on_trouble("timing modules", error)


class _BackwardPass:
    """One backward pass through one module, from its output's node to its input's; lives as long as the graph."""

    __slots__ = ("_name", "_round", "_sampler", "_start")

    def __init__(self, name: str, sampler: ModuleSampler) -> None:
        self._name, self._sampler, self._round = name, sampler, sampler.round
        self._start: Any = None

    def begins(self, _gradients: Any) -> None:
        """The node of the module's output is about to run; not in a graph that outlives the sampled step."""
        if self._sampler.running and self._sampler.round == self._round:
            self._start = self._sampler.now()
            self._sampler.in_backward[self] = None

    def ends(self, _gradients: Any) -> None:
        """The node of the module's input is about to run."""
        if self._start is not None:
            self._sampler.finish(self._name, BACKWARD, self._start, self._sampler.now())
            self._start = None
            self._sampler.in_backward.pop(self, None)


class _TimedModule:
    """The hooks of one module; `starts` is a stack, because a module may call itself.

    A copied module may carry the hooks, but without a sampler they do nothing: `deepcopy` of a bound method copies the object
    that it is bound to and keeps the function.
    """

    is_holdfast = True  # no part of a model that is pickled
    __slots__ = ("_sampler", "name", "starts")

    def __init__(self, name: str, sampler: ModuleSampler | None) -> None:
        self.name, self._sampler = name, sampler
        self.starts: list[Any] = []

    def before(self, _module: nn.Module, _inputs: Any) -> None:
        sampler = self._sampler
        if sampler is not None and torch.is_grad_enabled() and not _compiling() and sampler.may_time():
            self.starts.append(sampler.now())

    def after(self, _module: nn.Module, inputs: Any, output: Any) -> None:
        sampler = self._sampler
        if sampler is None or _compiling() or not self.starts:  # inside a compiled function: no hook in the graph
            return
        entered = time.perf_counter()
        try:
            sampler.finish(self.name, FORWARD, self.starts.pop(), sampler.now())
            if getattr(output, "dtype", None) is torch.float16:
                sampler.half = True
            node, input_node = _first_node(output), _first_node(inputs)
            if node is not None:
                backward = _BackwardPass(self.name, sampler)
                node.register_prehook(backward.begins)
                if input_node is not None and input_node is not node:
                    input_node.register_prehook(backward.ends)
        except Exception as error:  # noqa: BLE001 - shields the model's forward pass
            sampler.give_up(error)
        sampler.cost += _CALL_OVERHEAD * (time.perf_counter() - entered)

    def __reduce__(self) -> tuple[Any, ...]:
        return _TimedModule, ("", None)


def without_hooks(state: dict[str, Any]) -> dict[str, Any]:
    """Remove our hooks, and our stand-in for `forward`, from the state that a module gives to `copy` and `pickle`."""
    if getattr(state.get("forward"), "is_holdfast", False):
        state = {key: value for key, value in state.items() if key != "forward"}
    for kind in ("_forward_hooks", "_forward_pre_hooks"):
        hooks = state.get(kind)
        if hooks and any(_is_ours(hook) for hook in hooks.values()):
            state = {**state, kind: type(hooks)((key, hook) for key, hook in hooks.items() if not _is_ours(hook))}
    return state


def has_hooks(modules: Iterable[nn.Module]) -> bool:
    """Whether the script, or a package that it uses, does something of its own in forward or backward passes of these modules."""
    for module in (part for whole in modules for part in whole.modules()):
        kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        if any(not _is_ours(hook) for hooks in kinds for hook in hooks.values()):
            return True
        for parameter in module.parameters(recurse=False):
            if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
                return True
    return False


def _is_ours(hook: Any) -> bool:
    return bool(getattr(type(getattr(hook, "__self__", None)), "is_holdfast", False))


def seconds_between(start: Any, end: Any) -> float | None:
    """Duration of a pass; None if the GPU has not finished it yet."""
    if isinstance(start, float):
        return float(end - start)
    return float(start.elapsed_time(end)) / 1000.0 if end.query() else None


def _cuda_event() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _first_node(value: Any) -> Any:
    """The autograd node of the first tensor in a nested value that has one."""
    value = value[0] if type(value) is tuple and len(value) == 1 else value  # the common input
    if isinstance(value, torch.Tensor):
        return value.grad_fn
    nodes = (part.grad_fn for _, part in leaves(value, depth=3) if isinstance(part, torch.Tensor))
    return next((node for node in nodes if node is not None), None)
