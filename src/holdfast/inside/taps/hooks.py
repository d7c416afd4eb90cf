"""Install Holdfast into torch: public optimizer and registration hooks, and thin wrappers where torch has no hook."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook, register_module_parameter_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from holdfast.inside.control.restarted import cap_workers, restarted
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.observers.modules import without_hooks
from holdfast.inside.runtime import Runtime
from holdfast.inside.shield import Shield
from holdfast.inside.taps.collectives import BACKWARD, Collectives
from holdfast.inside.taps.registry import Hook, Taps, around
from holdfast.signals.own_thread import others
from holdfast.signals.pulse import LOADING

Optimizer = torch.optim.Optimizer
_compiling = torch.compiler.is_compiling
_tracing = torch.compiler.is_dynamo_compiling  # the cheaper question, for what every step asks
_CUDA_BUILT = bool(torch.backends.cuda.is_built())  # type: ignore[no-untyped-call]
_cuda: Any = torch.cuda
_capturing: Any = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None) or _cuda.is_current_stream_capturing
_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_function_modes: Callable[[], bool] = getattr(torch._C, "_is_torch_function_mode_enabled", lambda: False)
_TIME_BACKWARD_EVERY = 2  # steps


class Hooks:
    """Everything that is installed into torch, and removed again."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._taps = Taps()
        self._handles: list[Any] = []
        self._threads = runtime.threads
        self.guards = False  # whether the wrappers that only a guard needs are installed
        self._collectives = Collectives(runtime)
        shield = Shield(runtime.trouble)
        self._before = shield(runtime.before_update)
        self._after = shield(runtime.after_update)
        self._shield, self._failures = shield, shield.failures

    def install(self) -> None:
        """Install everything."""
        registry, wrap = self.runtime.registry, self._taps.wrap
        self._handles.append(register_optimizer_step_pre_hook(Hook(self._before_step)))
        self._handles.append(register_optimizer_step_post_hook(Hook(self._after_step)))
        self._handles.append(register_module_parameter_registration_hook(Hook(registry.note_module)))
        self._handles.append(register_module_module_registration_hook(Hook(registry.note_module)))
        wrap("torch.optim.Optimizer.__init__", lambda original: around(original, registry.note_optimizer))
        wrap("torch.autograd.backward", self._backward)
        wrap("torch.autograd.grad", self._before_call(self.runtime.gradients_computed))
        wrap("torch.amp.GradScaler.scale", self._scale)
        wrap("torch.amp.GradScaler.step", self._scaler_step)
        wrap("torch.nn.utils.clip_grad_norm_", self._clip)
        wrap("torch.nn.utils.clip_grad.clip_grad_norm_", self._clip)
        wrap("torch.utils.data.dataloader._BaseDataLoaderIter.__next__", self._next_batch)
        wrap("torch.nn.Module.train", self._train)
        wrap("torch.nn.Module.__getstate__", self._getstate)
        wrap("torch.nn.Module.load_state_dict", self._load_state_dict)
        self.runtime.saves.install(self._taps, self._shield)
        self.runtime.loads.install(self._taps, self._shield, heals=any(scope.policy.heals for scope in self.runtime.scopes))
        self.guards = any(scope.policy.acts for scope in self.runtime.scopes)
        if self.guards:
            self.runtime.feeds.keep_batches().install(self._taps)
            wrap("torch.optim.swa_utils.AveragedModel.update_parameters", self._update_average)
        wrap("torch.jit._recursive.create_script_module", self._before_call(self.runtime.stop_sampling_modules))
        wrap("threading.enumerate", lambda original: lambda: others(original()))
        wrap("threading.active_count", lambda _original: lambda: len(threading.enumerate()))
        wrap("os._exit", self._before_call(self.runtime.write_rows))
        self._collectives.install(self._taps, self._shield)
        restart = restarted()
        if restart is not None and restart.workers is not None:
            cap_workers(self._taps, restart.workers)

    def remove(self) -> None:
        """Remove everything."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._taps.restore()

    # The optimizer. These and `backward` run in every step, so they do their own error handling: one wrapper less saves
    # several microseconds when caches are cold.

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _tracing() or (_CUDA_BUILT and _cuda._initialized and _capturing()):  # nothing may be added to a CUDA graph
            return None
        if _dispatch_modes() or _function_modes():
            made_up = is_made_up()
            with own_operations():
                return None if made_up else self._before_step(optimizer, args, kwargs)
        thread = self._threads.here
        thread.steps_under_way += 1
        if thread.steps_under_way > 1:
            return None
        if self._failures and self._shield.closed("before_update"):
            thread.common = None
            self.runtime.update_unchecked(optimizer, thread.scaler)
            return None
        thread.reached_update = True
        closure = closure_of(args, kwargs) if kwargs or len(args) > 1 else None
        if closure is None:
            try:
                if thread.common is None or thread.scaler is not None or not thread.common.before_update(optimizer):
                    self.runtime.before_update(optimizer, thread.scaler)
            except Exception as error:  # noqa: BLE001 - shields the user's step
                thread.common = None
                self._shield.failed("before_update", error)
                self.runtime.update_unchecked(optimizer, thread.scaler)
            return None
        return with_closure(args, kwargs, self._wrap_closure(closure, optimizer))

    def _wrap_closure(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        """Wrap a closure: after its first call the gradients are complete."""
        called = False

        def wrapped_closure(*args: Any, **kwargs: Any) -> Any:
            nonlocal called
            self._threads.here.in_closure = True
            try:
                result = closure(*args, **kwargs)
            finally:
                self._threads.here.in_closure = False
            if not called:
                called = True
                self._before(optimizer, self._threads.here.scaler)
            return result

        return wrapped_closure

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if _dispatch_modes() or _function_modes():
            with own_operations():
                self._after_step(optimizer, _args, _kwargs)
            return
        thread = self._threads.here
        if thread.steps_under_way == 0:
            return
        thread.steps_under_way -= 1
        if thread.steps_under_way == 0 and not (self._failures and self._shield.closed("after_update")):
            try:
                if thread.common is not None:
                    thread.common.after_update(optimizer)
                else:
                    self.runtime.after_update(optimizer)
            except Exception as error:  # noqa: BLE001 - shields the user's step
                self._shield.failed("after_update", error)

    # The gradient scaler

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if scaled is not outputs:
                self._threads.here.losses.note_scaling(scaled, outputs, scaler._scale)
            return scaled

        return scale

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            thread = self._threads.here
            thread.scaler, thread.reached_update = scaler, False
            try:
                result = original(scaler, optimizer, *args, **kwargs)
            finally:
                thread.scaler = None
            if not thread.reached_update and isinstance(optimizer, Optimizer):
                inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate passes a wrapper
                self._before(inner, scaler)
                self._after(inner, skipped=True)
            return result

        return step

    # Everything else

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        runtime, shield, failures = self.runtime, self._shield, self._failures
        end = shield(runtime.backward_ended)

        def begin(tensors: Any) -> bool:
            if _dispatch_modes() or _function_modes():
                made_up = is_made_up()
                with own_operations():
                    return not made_up and begin(tensors)
            thread = self._threads.here
            if not thread.in_closure:
                thread.steps_under_way = 0  # left over from a step that raised
            if not (failures and shield.closed("backward_begins")):
                try:
                    if thread.common is None or thread.evaluation is not None or not thread.losses.note_common(tensors):
                        runtime.backward_begins(tensors)
                except Exception as error:  # noqa: BLE001 - shields the user's backward
                    shield.failed("backward_begins", error)
            return True

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            thread = self._threads.here
            if _tracing() or thread.in_backward or not begin(tensors):  # activation checkpointing calls it inside
                return original(tensors, *args, **kwargs)
            if runtime.fast_forwarding is not None and runtime.fast_forwarding.skips_backward():
                return None
            thread.in_backward = True
            record_wait = self._collectives.record  # with several ranks: how long a backward pass took
            start = time.perf_counter() if record_wait is not None else 0.0
            try:
                result = original(tensors, *args, **kwargs)
            finally:
                thread.in_backward = False
            if record_wait is not None and runtime.trainings and runtime.trainings[-1].step % _TIME_BACKWARD_EVERY == 0:
                record_wait(BACKWARD, (), time.perf_counter() - start)
            thread.backwards += 1
            if runtime.samples_modules or thread.backwards >= thread.look_at:
                end()
            return result

        return backward

    def _before_call(self, event: Callable[[], None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A wrapper that only calls `event` before each call."""
        shielded = self._shield(event)

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if not _compiling():
                    shielded()
                return original(*args, **kwargs)

            return wrapper

        return wrap

    def _clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        begin, end = self._shield(self.runtime.clipping_begins), self._shield(self.runtime.clipping_ended)

        def clip_grad_norm_(parameters: Any, max_norm: Any, norm_type: Any = 2.0, *args: Any, **kwargs: Any) -> Any:
            if _compiling() or isinstance(parameters, torch.Tensor):
                return original(parameters, max_norm, norm_type, *args, **kwargs)
            parameters = list(parameters)
            if not parameters:
                return original(parameters, max_norm, norm_type, *args, **kwargs)
            begin(parameters, float(norm_type))
            norm = original(parameters, max_norm, norm_type, *args, **kwargs)
            end(parameters, norm, max_norm, float(norm_type))
            return norm

        return clip_grad_norm_

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        runtime = self.runtime
        on_batch, on_end = self._shield(runtime.batch), self._shield(runtime.loader_ended)
        on_first_draw = self._shield(runtime.begins_to_draw)

        def __next__(iterator: Any) -> Any:
            HEARTBEAT.drawing()
            if not HEARTBEAT.shown:
                on_first_draw()
            start = time.perf_counter()
            try:
                batch = runtime.fast_forwarding.next_batch(iterator) if runtime.fast_forwarding is not None else None
                if batch is None:
                    batch = original(iterator)
            except StopIteration:
                HEARTBEAT.drawn()
                on_end(iterator)
                raise
            HEARTBEAT.drawn()
            on_batch(iterator, batch, time.perf_counter() - start)
            return batch

        return __next__

    def _train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        whole_models, on_mode = self.runtime.whole_models, self._shield(self.runtime.mode_set)

        def train(module: nn.Module, mode: bool = True) -> nn.Module:
            result: nn.Module = original(module, mode)
            if id(module) in whole_models:
                on_mode(module, mode)
            return result

        return train

    def _load_state_dict(self, original: Callable[..., Any]) -> Callable[..., Any]:
        before, after = self._shield(self.runtime.state_loaded), self._shield(self.runtime.loads.module_loaded)

        def load_state_dict(module: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            before()
            with HEARTBEAT.during(LOADING):
                result = original(module, state_dict, *args, **kwargs)
            after(module, state_dict, result)
            return result

        return load_state_dict

    def _update_average(self, original: Callable[..., Any]) -> Callable[..., Any]:
        was_skipped = self._shield(self.runtime.was_skipped)

        def update_parameters(average: Any, model: nn.Module) -> Any:
            return None if was_skipped(model) else original(average, model)

        return update_parameters

    def _getstate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __getstate__(module: nn.Module) -> Any:
            return without_hooks(original(module))

        return __getstate__


@contextlib.contextmanager
def own_operations() -> Iterator[None]:
    """Keep Holdfast's own operations out of what the script's modes count, log or forbid."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def is_made_up() -> bool:
    """Whether the script only plays a training through with tensors that hold no numbers."""
    key: Any = getattr(torch._C, "_TorchDispatchModeKey", None)
    return key is not None and torch._C._get_dispatch_mode(key.FAKE) is not None


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the closure passed to `step`, if any: a custom optimizer may take a loss, an LR or a model in its place."""
    closure = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
    return closure if callable(closure) and not isinstance(closure, nn.Module) else None


def with_closure(args: tuple[Any, ...], kwargs: dict[str, Any], closure: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    """Return the same arguments with another closure."""
    if "closure" in kwargs:
        return args, {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), kwargs
