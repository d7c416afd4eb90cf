"""`holdfast replay` in the process: the script runs as ever, up to the step that went wrong.

the first training batches   -> the saved ones
the model's first call       -> the saved weights; the random numbers are those of the saved batch
from then on                 -> every operation is watched, the backward pass too
before the optimizer steps   -> the answer is written, and the process ends: nothing of the script's is changed
"""

from __future__ import annotations

import atexit
import json
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.injected.operations import ModuleNames, Operations, Origin, is_bad
from holdfast.injected.saved_step import alike, fits, moved, related, set_randomness, state_dicts
from holdfast.inside.arm import armed
from holdfast.inside.discovery import find_live_objects, plain_name
from holdfast.inside.observers.batch_contents import bad_fields, leaves, look_at_input
from holdfast.inside.scope import Scope
from holdfast.inside.taps.hooks import closure_of, with_closure
from holdfast.inside.taps.registry import Patches
from holdfast.signals.run_folder import RunFolder

RESULT = "HOLDFAST_REPLAY_RESULT"


def begin() -> None:
    """Have this process replay what HOLDFAST_REPLAY names; the answer goes to the file that HOLDFAST_REPLAY_RESULT names."""
    result = os.environ.get(RESULT)
    Replay(Path(os.environ["HOLDFAST_REPLAY"]), Path(result) if result else None).install()


class Replay:
    """The saved step, and how far the script has come in it."""

    def __init__(self, path: Path, result: Path | None) -> None:
        self._path, self._result, self._pid = path, result, os.getpid()
        self._saved: dict[str, Any] | None = None
        self._patches = Patches()
        self._operations = Operations()
        self._names = ModuleNames(self._operations)
        self._watching, self._backwards, self._over = False, 0, False
        self._passed_a_step = False
        self._given: dict[int, int] = {}  # batches given out, by iterator
        self._iterators: list[Any] = []
        self._models: list[nn.Module] = []
        self._loaded: set[str] = set()
        self._input = "unknown"
        self._loss: float | None = None
        self._notes: list[str] = []

    def install(self) -> None:
        """Hang everything in. `holdfast.watch` in the script then finds a run that records nothing."""
        from holdfast.inside.watch import Run

        replace = self._patches.replace
        replace(_BaseDataLoaderIter, "__next__", self._next_batch)
        replace(Run, "batches", self._run_batches)
        replace(torch.autograd, "backward", self._backward)
        replace(torch.autograd, "grad", self._grad)
        replace(torch, "save", self._save)
        for name in ("step", "unscale_"):
            replace(torch.amp.GradScaler, name, self._before_scaler)
        replace(torch.amp.GradScaler, "scale", self._scale)
        nn.modules.module.register_module_forward_pre_hook(self._module_called)
        nn.modules.module.register_module_forward_hook(self._module_done, always_call=True)
        register_optimizer_step_pre_hook(self._before_step)
        atexit.register(self._at_exit)
        armed().runtime.scopes.append(Scope(RunFolder(Path(tempfile.gettempdir()) / "holdfast-replay"), follows_children=True))

    @property
    def saved(self) -> dict[str, Any]:
        """What is in the file; read when it is first needed, for a batch may be of a class that the script defines."""
        if self._saved is None:
            try:
                content: dict[str, Any] = torch.load(self._path, map_location="cpu", weights_only=True)
            except Exception:  # noqa: BLE001 - a batch of the user's own classes, written by the user's own run
                content = torch.load(self._path, map_location="cpu", weights_only=False)
            self._saved = content
        return self._saved

    # The batches

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            drawn = original(iterator)
            return self._instead_of(drawn, iterator) if torch.is_grad_enabled() else drawn

        return __next__

    def _run_batches(self, _original: Callable[..., Any]) -> Callable[..., Any]:
        def batches(_run: Any, loader: Any) -> Iterator[Any]:
            if isinstance(loader, torch.utils.data.DataLoader):
                yield from loader
                return
            iterator = iter(loader)
            for drawn in iterator:
                yield self._instead_of(drawn, iterator)

        return batches

    def _instead_of(self, drawn: Any, iterator: Any) -> Any:
        """The saved batch that belongs here, or the script's own if none does."""
        if os.getpid() != self._pid:
            return drawn
        fitting = self._for(iterator, drawn)
        if not fitting:
            return drawn
        place = self._given.get(id(iterator), 0)
        if place >= len(fitting) and self._backwards >= len(fitting):
            self._finish(None)
        self._given[id(iterator)] = place + 1
        entry = fitting[min(place, len(fitting) - 1)]
        batch = moved(entry["batch"], drawn)
        self._watch()
        self._see_input(batch)
        set_randomness({**self.saved["randomness"], **entry["randomness"]})
        return batch

    def _for(self, iterator: Any, drawn: Any) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.saved["batches"]
        if all(known is not iterator for known in self._iterators):
            self._iterators.append(iterator)
        loaders = sorted({entry["loader"] for entry in entries})
        if len(loaders) > 1:  # a step of several loaders: which is which, is told by the order of the first draws
            order = [known for known in self._iterators if any(alike(entry["batch"], drawn) for entry in entries)]
            number = loaders[next(n for n, known in enumerate(order) if known is iterator) % len(loaders)] if order else 0
            entries = [entry for entry in entries if entry["loader"] == number]
        return [entry for entry in entries if alike(entry["batch"], drawn)]

    def _see_input(self, batch: Any) -> None:
        look = look_at_input(batch)
        if self._input in ("unknown", "finite"):
            self._input = look
        if look not in ("finite", "unknown"):
            names = {field.name: field.words for field in bad_fields(batch)}
            for name, value in leaves(batch):
                if name in names and isinstance(value, torch.Tensor):
                    self._operations.taint(value, Origin("input", detail=names[name]))

    # The model

    def _module_called(self, module: nn.Module, _args: Any) -> None:
        if self._over or os.getpid() != self._pid:
            return
        outermost = self._names.enter(module)
        if outermost and module.training and torch.is_grad_enabled() and next(module.parameters(), None) is not None:
            if all(known is not module for known in self._models):
                self._models.append(module)
                self._load_into(module)
            self._watch()

    def _module_done(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._names.leave()

    def _load_into(self, called: nn.Module) -> None:
        """Put the saved weights into the model that is being called, or that it is a part of."""
        states = state_dicts(self.saved["state"])
        missing = {name: state for name, state in states.items() if name not in self._loaded}
        living = find_live_objects().modules if missing else []
        for name, state in missing.items():
            found = [module for module in (called, *living) if fits(module, state) and related(module, called)]
            if found:
                self._copy_state(found[0], state)
                self._loaded.add(name)

    def _copy_state(self, module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad(), _paused(self._operations, self._watching):
            for name, tensor in module.state_dict(keep_vars=True).items():
                wanted = state.get(plain_name(name))
                if wanted is not None and isinstance(tensor, torch.Tensor):
                    tensor.detach().copy_(wanted)
                    if is_bad(tensor):
                        self._operations.taint(tensor, Origin("weights", detail=plain_name(name)))

    # The backward pass, and the end

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._loss_is(tensors)
            result = original(tensors, *args, **kwargs)
            self._gradients_are_there()
            return result

        return backward

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._loss_is(outputs)
            return original(outputs, inputs, *args, **kwargs)

        return grad

    def _loss_is(self, tensors: Any) -> None:
        if not self._watching or self._over:
            return
        for tensor in [tensors] if isinstance(tensors, torch.Tensor) else list(tensors):
            if tensor.numel() == 1:
                self._loss = float(tensor.detach())
            if is_bad(tensor):
                self._finish(self._operations.origin_of(tensor) or self._first_origin(), reached="the loss")

    def _gradients_are_there(self) -> None:
        if not self._watching or self._over:
            return
        self._backwards += 1
        named = [(plain_name(name), p) for model in self._models for name, p in model.named_parameters() if p.grad is not None]
        bad = [(name, parameter) for name, parameter in named if is_bad(parameter.grad)]
        if bad:
            name, parameter = bad[-1]  # nearest to where it began: the backward pass comes from the last layer
            assert parameter.grad is not None
            origin = self._operations.origin_of(parameter.grad) or self._first_origin("backward")
            self._finish(origin, reached=f"the gradient of {name}", bad=[name for name, _ in bad])

    def _first_origin(self, stage: str = "") -> Origin | None:
        known = [origin for origin in self._operations.origins if origin.kind != "constant" and stage in ("", origin.stage)]
        return known[0] if known else None

    def _before_step(self, optimizer: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        closure = closure_of(args, kwargs)
        if closure is None or self._backwards:
            self._step_comes(optimizer)
            return None

        def watched_closure(*a: Any, **k: Any) -> Any:
            result = closure(*a, **k)
            self._step_comes(optimizer)
            return result

        return with_closure(args, kwargs, watched_closure)

    def _before_scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def before(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._step_comes(optimizer)
            return original(scaler, optimizer, *args, **kwargs)

        return before

    def _step_comes(self, optimizer: Any) -> None:
        if self._backwards and not self._over and os.getpid() == self._pid:
            others = [other for other in find_live_objects().optimizers if other is not optimizer and other.param_groups]
            if others and self._given and not self._passed_a_step:
                self._passed_a_step = True  # of two networks against each other, the second one's loss may be the bad one
                for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                    parameter.grad = None
                return
            self._finish(None)

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            wanted = self.saved.get("scale")
            if wanted and self._watching:
                scaler._init_scale = float(wanted)
                if scaler._scale is not None:
                    scaler._scale.fill_(float(wanted))
            return original(scaler, outputs)

        return scale

    def _save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(thing: Any, to: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(to, (str, os.PathLike)) and Path(to).exists():
                return None  # a checkpoint of the real run
            return original(thing, to, *args, **kwargs)

        return save

    def _watch(self) -> None:
        if not self._watching and not self._over:
            self._watching = True
            torch.autograd.set_detect_anomaly(True, check_nan=False)
            self._operations.start()

    def _finish(self, origin: Origin | None, *, reached: str = "", bad: list[str] | None = None) -> None:
        """Write the answer, and end the process before the script can change anything."""
        self._over = True
        if self._watching:
            self._operations.stop()
        answer: dict[str, Any] = {"found": bool(reached), "reached": reached, "bad_gradients": bad or []}
        if origin is not None:
            answer |= origin.as_dict()
        elif reached:
            answer["kind"] = "unseen"
        self._write(answer)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    def _write(self, answer: dict[str, Any]) -> None:
        states = state_dicts(self.saved["state"]) if self._watching else {}
        unloaded = [name for name in states if name not in self._loaded]
        notes = list(self._notes)
        if self._watching and not self._given:
            notes.append("the saved batch was not used: the script's own first one was")
        if unloaded:
            notes.append("the saved weights do not fit the model that was called: its own were used")
        answer |= {"input": self._input, "batches": sum(self._given.values()), "weights_loaded": bool(self._loaded)}
        answer |= {"loss": self._loss, "notes": notes}
        if self._result is None:
            print(json.dumps(_for_json(answer), indent=1), file=sys.stderr)
            return
        spare = self._result.with_name(f".{self._result.name}.{os.getpid()}")
        spare.write_text(json.dumps(_for_json(answer)), encoding="utf-8")
        spare.replace(self._result)

    def _at_exit(self) -> None:
        """The script came to its end, or to an error, before the step was over."""
        if self._over or os.getpid() != self._pid or multiprocessing.parent_process() is not None:
            return
        self._over = True
        if self._watching:
            self._operations.stop()
        stage = "no backward pass" if self._watching else "no training batch was drawn and no model was called"
        if self._result is None or not self._result.exists():
            self._write({"found": False, "reached": "", "problem": f"the script ended early: {stage}"})


class _paused:
    """Leave the watching of operations for a moment."""

    def __init__(self, operations: Operations, watching: bool) -> None:
        self._operations, self._watching = operations, watching

    def __enter__(self) -> None:
        if self._watching:
            self._operations.stop()

    def __exit__(self, *_: object) -> None:
        if self._watching:
            self._operations.start()


def _for_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _for_json(part) for key, part in value.items()}
    return [_for_json(part) for part in value] if isinstance(value, (list, tuple)) else value
