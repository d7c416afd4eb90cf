"""Time and memory of each module, forward and backward, in sampled steps.

Hooks are put on the modules for one step and taken off again, so an ordinary step pays nothing. The backward pass is
timed at the autograd nodes: a module's starts when its output's node is about to run and ends when its input's is.
Full backward hooks would do as well, but they insert nodes into the graph and forbid in-place operations behind a module.
The inside of a compiled module is one whole and is timed as one.
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
_AT_MOST = 50_000  # finished passes between two updates: a script that only goes forward from here on must not fill the memory
_UNSEEN = 2.0  # a hook costs about twice what it can measure itself: calling it is the rest

# One finished pass: module, stage, start, end (on a GPU these are CUDA events), bytes on the GPU, resident bytes
ModuleTime = tuple[str, str, Any, Any, "int | None", int]


class ModuleSampler:
    """Hooks for one sampled step. Put on with `start`, taken off with `stop`, which gives the times."""

    def __init__(self, memory: ProcessMemory, on_trouble: Callable[[str, BaseException], None]) -> None:
        self.running = False
        self.paused = False  # in evaluation; until the model is back in training, or the step is over
        self.half = False  # whether a module gave numbers in half precision, which overflow beyond 65504
        self._memory, self._on_trouble = memory, on_trouble
        self._given_up = False
        self._handles: list[Any] = []
        self._watched: list[_Watched] = []
        self._done: list[ModuleTime] = []
        self._begun: dict[_Pass, None] = {}  # backward passes under way, in their order
        self._round = 0
        self._cost = 0.0
        self._device: torch.device | None = None
        self._mark: Callable[[], Any] = time.perf_counter

    def start(self, roots: list[nn.Module], device: torch.device) -> None:
        """Put hooks on every module of the model."""
        if self._given_up:
            return
        begun = time.perf_counter()
        self._device = device if device.type == "cuda" else None
        self._mark = _cuda_mark if device.type == "cuda" else time.perf_counter
        whole: list[str] = []
        for name, module in named(roots, "modules"):
            if any(not outer or name == outer or name.startswith(outer + ".") for outer in whole):
                continue
            if type(module).__name__ == "OptimizedModule":
                whole.append(name)
            elif module._compiled_call_impl is not None or isinstance(module, torch.jit.ScriptModule):
                whole.append(name)  # a hook would be compiled in, each time anew
                continue
            watched = _Watched(name or WHOLE_MODEL, self)
            self._watched.append(watched)
            self._handles.append(module.register_forward_pre_hook(watched.before))
            self._handles.append(module.register_forward_hook(watched.after))
        self.running = True
        self._cost += time.perf_counter() - begun

    def take_cost(self) -> float:
        """Seconds that putting the hooks on and running them took since the last call."""
        cost, self._cost = self._cost, 0.0
        return cost

    def stop(self) -> list[ModuleTime]:
        """Take the hooks off and give what was timed, in the order it ended."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.running = False
        times = self.take()
        self._watched.clear()
        return times

    def take(self) -> list[ModuleTime]:
        """Give what was timed and go on; hooks that stay spare the cost of putting them back."""
        self.end_backward()
        self._round += 1
        self.paused = False
        for watched in self._watched:
            watched.begun.clear()
        done, self._done = self._done, []
        return done

    def end_backward(self) -> None:
        """Close the modules whose input needs no gradient: they end with the whole backward pass."""
        if self._begun:
            end, left = self._mark(), list(self._begun)
            for one in left:
                self.end_pass(one, end)

    def begin_pass(self, one: _Pass, now: Any) -> None:
        """The backward pass of a module begins."""
        one.begun = now
        self._begun[one] = None

    def end_pass(self, one: _Pass, now: Any) -> None:
        """The backward pass of a module ends, if it has begun."""
        if one.begun is not None:
            self.finish(one.name, BACKWARD, one.begun, now)
            one.begun = None
            self._begun.pop(one, None)

    def may_time(self) -> bool:
        """Whether another forward pass is to be timed."""
        return not self.paused and len(self._done) < _AT_MOST

    def finish(self, name: str, stage: str, start: Any, end: Any) -> None:
        """Keep one finished pass."""
        if self._device is not None:
            self._done.append((name, stage, start, end, gpu_memory(self._device)[0], self._memory.latest))
        else:
            self._done.append((name, stage, start, end, None, self._memory.read_at_most_every(_MEMORY_EVERY, end)))

    def give_up(self, error: Exception) -> None:
        """Time no more modules in this training: one of them gives what cannot be looked at."""
        self._given_up = True
        self._on_trouble("timing modules", error)

    def follow_backward(self, name: str, produced: Any, consumed: Any) -> None:
        """Time the backward pass of a module, from its output's node to its input's."""
        one = _Pass(name)
        self._point(produced).begins.append(one)
        if consumed is not None and consumed is not produced:
            self._point(consumed).ends.append(one)

    def _point(self, node: Any) -> _Point:
        """What is timed at a node: one hook for all modules that begin or end there in this step.

        It is kept with the node, and goes with the graph: a table here would keep every graph of the step alive.
        """
        point: _Point | None = node.metadata.get(self)
        if point is None or point.round != self._round:
            point = node.metadata[self] = _Point(self, self._round)
            node.register_prehook(point.passed)
        return point


class _Pass:
    """One backward pass through one module."""

    __slots__ = ("begun", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun: Any = None


class _Point:
    """An autograd node at which modules begin or end."""

    __slots__ = ("_sampler", "begins", "ends", "round")

    def __init__(self, sampler: ModuleSampler, in_round: int) -> None:
        self._sampler, self.round = sampler, in_round
        self.begins: list[_Pass] = []
        self.ends: list[_Pass] = []

    def passed(self, _gradients: Any) -> None:
        """The node is about to run."""
        sampler = self._sampler
        if not sampler.running:  # a graph that outlives the sampled step
            return
        now = sampler._mark()
        for one in self.ends:
            sampler.end_pass(one, now)
        for one in self.begins:
            sampler.begin_pass(one, now)


class _Watched:
    """One module while it is timed; a stack, because a module may be called inside itself.

    A copy of the module may have these hooks too, but then without a sampler: `deepcopy` of a bound method copies what it is
    bound to and keeps the function, so the functions themselves have nothing to do there.
    """

    __slots__ = ("_sampler", "begun", "name")

    def __init__(self, name: str, sampler: ModuleSampler | None) -> None:
        self.name, self._sampler = name, sampler
        self.begun: list[Any] = []

    def before(self, _module: nn.Module, _inputs: Any) -> None:
        sampler = self._sampler
        if sampler is not None and torch.is_grad_enabled() and not _compiling() and sampler.may_time():
            self.begun.append(sampler._mark())

    def after(self, _module: nn.Module, inputs: Any, output: Any) -> None:
        sampler = self._sampler
        if sampler is None or _compiling() or not self.begun:  # compiled with a function around it: no hook in the graph
            return
        entered = time.perf_counter()
        try:
            sampler.finish(self.name, FORWARD, self.begun.pop(), sampler._mark())
            if getattr(output, "dtype", None) is torch.float16:
                sampler.half = True
            produced = _first_node(output)
            if produced is not None:
                sampler.follow_backward(self.name, produced, _first_node(inputs))
        except Exception as error:  # noqa: BLE001 - shields the model's forward pass
            sampler.give_up(error)
        sampler._cost += _UNSEEN * (time.perf_counter() - entered)

    def __deepcopy__(self, _memo: Any) -> _Silent:
        return _Silent()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Silent, ()


class _Silent(_Watched):
    """What becomes of a hook in a copy of its module, where the module's class copies its hooks by itself."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("", None)


def without_hooks(state: dict[str, Any]) -> dict[str, Any]:
    """What a module gives to `copy` and `pickle`, without the hooks that are here for one step."""
    for kind in ("_forward_hooks", "_forward_pre_hooks"):
        hooks = state.get(kind)
        if hooks and any(_is_ours(hook) for hook in hooks.values()):
            state = {**state, kind: type(hooks)((key, hook) for key, hook in hooks.items() if not _is_ours(hook))}
    return state


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), _Watched)


def seconds_between(start: Any, end: Any) -> float | None:
    """Length of a pass; None if the GPU has not reached its end yet."""
    if isinstance(start, float):
        return float(end - start)
    return float(start.elapsed_time(end)) / 1000.0 if end.query() else None


def _cuda_mark() -> Any:
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
