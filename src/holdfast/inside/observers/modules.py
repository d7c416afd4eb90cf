"""Time and memory of each module, forward and backward, in sampled steps.

Hooks are registered for one step and removed again, so that an ordinary step pays nothing. The backward pass is timed at the
autograd nodes, from the module's output to its input: full backward hooks would insert nodes into the graph and forbid in-place
operations after a module. A compiled module is timed as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from holdfast.inside.discovery import named
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
        self._in_backward: dict[_BackwardPass, None] = {}  # in their order
        self._round = 0
        self._cost = 0.0
        self._device: torch.device | None = None
        self._now: Callable[[], Any] = time.perf_counter

    def start(self, roots: list[nn.Module], device: torch.device) -> None:
        """Register hooks on every module of the models."""
        if self._has_failed or self.running:
            return
        start = time.perf_counter()
        self._device = device if device.type == "cuda" else None
        self._now = _cuda_event if device.type == "cuda" else time.perf_counter
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
        self._cost += time.perf_counter() - start

    def take_cost(self) -> float:
        """Seconds that registering and running the hooks took since the last call."""
        cost, self._cost = self._cost, 0.0
        return cost

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
        self._round += 1
        self.paused = False
        for timed in self._modules:
            timed.starts.clear()
        finished, self._finished = self._finished, []
        return finished

    def end_backward(self) -> None:
        """End the modules whose input needs no gradient: they end with the whole backward pass."""
        if self._in_backward:
            end = self._now()
            for backward in list(self._in_backward):
                self.end_pass(backward, end)

    def begin_pass(self, backward: _BackwardPass) -> None:
        """Start the backward pass of a module."""
        backward.start = self._now()
        self._in_backward[backward] = None

    def end_pass(self, backward: _BackwardPass, now: Any) -> None:
        """End the backward pass of a module, if it has started."""
        if backward.start is not None:
            self.finish(backward.name, BACKWARD, backward.start, now)
            backward.start = None
            self._in_backward.pop(backward, None)

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

    def follow_backward(self, name: str, output: Any, input_: Any) -> None:
        """Time the backward pass of a module, from its output's node to its input's."""
        backward = _BackwardPass(name, self, self._round)
        output.register_prehook(backward.begins)
        if input_ is not None and input_ is not output:
            input_.register_prehook(backward.ends)


class _BackwardPass:
    """One backward pass through one module; lives as long as the graph."""

    __slots__ = ("_round", "_sampler", "name", "start")

    def __init__(self, name: str, sampler: ModuleSampler, in_round: int) -> None:
        self.name, self._sampler, self._round = name, sampler, in_round
        self.start: Any = None

    def begins(self, _gradients: Any) -> None:
        """The node of the module's output is about to run; not in a graph that outlives the sampled step."""
        if self._sampler.running and self._sampler._round == self._round:
            self._sampler.begin_pass(self)

    def ends(self, _gradients: Any) -> None:
        """The node of the module's input is about to run."""
        if self.start is not None:
            self._sampler.end_pass(self, self._sampler._now())


class _TimedModule:
    """The hooks of one module; `starts` is a stack, because a module may call itself.

    A copied module may carry the hooks, but without a sampler they do nothing: `deepcopy` of a bound method copies the object
    that it is bound to and keeps the function.
    """

    __slots__ = ("_sampler", "name", "starts")

    def __init__(self, name: str, sampler: ModuleSampler | None) -> None:
        self.name, self._sampler = name, sampler
        self.starts: list[Any] = []

    def before(self, _module: nn.Module, _inputs: Any) -> None:
        sampler = self._sampler
        if sampler is not None and torch.is_grad_enabled() and not _compiling() and sampler.may_time():
            self.starts.append(sampler._now())

    def after(self, _module: nn.Module, inputs: Any, output: Any) -> None:
        sampler = self._sampler
        if sampler is None or _compiling() or not self.starts:  # inside a compiled function: no hook in the graph
            return
        entered = time.perf_counter()
        try:
            sampler.finish(self.name, FORWARD, self.starts.pop(), sampler._now())
            if getattr(output, "dtype", None) is torch.float16:
                sampler.half = True
            node = _first_node(output)
            if node is not None:
                sampler.follow_backward(self.name, node, _first_node(inputs))
        except Exception as error:  # noqa: BLE001 - shields the model's forward pass
            sampler.give_up(error)
        sampler._cost += _CALL_OVERHEAD * (time.perf_counter() - entered)

    def __deepcopy__(self, _memo: Any) -> _InertHook:
        return _InertHook()

    def __reduce__(self) -> tuple[Any, ...]:
        return _InertHook, ()


class _InertHook(_TimedModule):
    """A hook in a copy of its module, where the module's class copies hooks itself."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("", None)


def without_hooks(state: dict[str, Any]) -> dict[str, Any]:
    """Remove our hooks, and our stand-in for `forward`, from the state that a module gives to `copy` and `pickle`."""
    if getattr(state.get("forward"), "is_holdfast", False):
        state = {key: value for key, value in state.items() if key != "forward"}
    for kind in ("_forward_hooks", "_forward_pre_hooks"):
        hooks = state.get(kind)
        if hooks and any(_is_ours(hook) for hook in hooks.values()):
            state = {**state, kind: type(hooks)((key, hook) for key, hook in hooks.items() if not _is_ours(hook))}
    return state


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), _TimedModule)


def seconds_between(start: Any, end: Any) -> float | None:
    """Duration of a pass; None if the GPU has not finished it yet."""
    if isinstance(start, float):
        return float(end - start)
    return float(start.elapsed_time(end)) / 1000.0 if end.query() else None


def _cuda_event() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


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
