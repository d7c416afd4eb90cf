"""`holdfast replay` inside the process: run the script normally, up to the step that failed.

the first training batches   -> replaced by the saved ones, with their random generators
the model's first call       -> loads the saved weights
from then on                 -> every operation is watched, in the backward pass too
before the optimizer steps   -> the result is written and the process exits: the script's files stay unchanged
"""

from __future__ import annotations

import atexit
import json
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.injected.operations import Operations, Origin, is_bad
from holdfast.inside.arm import armed
from holdfast.inside.discovery import find_live_objects, plain_name
from holdfast.inside.observers.batch_contents import input_status, leaves, non_finite_fields
from holdfast.inside.scope import Scope
from holdfast.inside.taps.registry import Patches
from holdfast.signals.run_folder import RunFolder
from holdfast.state.parameters import parameters_of


def begin() -> None:
    """Replay the step that HOLDFAST_REPLAY names; the result goes to the file in HOLDFAST_REPLAY_RESULT."""
    Replay(Path(os.environ["HOLDFAST_REPLAY"]), Path(os.environ["HOLDFAST_REPLAY_RESULT"])).install()


class Replay:
    """The saved step, and the script's progress in it."""

    def __init__(self, path: Path, result: Path) -> None:
        self._path, self._result, self._pid = path, result, os.getpid()
        self._saved: dict[str, Any] | None = None
        self._patches = Patches()
        self._operations = Operations()
        self._watching, self._backwards, self._finished = False, 0, False
        self._skipped_step = False
        self._num_replaced: dict[int, int] = {}  # batches, by iterator
        self._loaders: dict[int, tuple[Any, int]] = {}  # by iterator, which is kept: the number of its loader in the saved step
        self._models: list[nn.Module] = []
        self._loaded: set[str] = set()
        self._input = "unknown"
        self._loss: float | None = None

    def install(self) -> None:
        """Install the hooks. `holdfast.watch` in the script then finds a run that records nothing."""
        from holdfast.inside.watch import Run

        replace = self._patches.replace
        replace(_BaseDataLoaderIter, "__next__", self._next_batch)
        replace(Run, "batches", self._run_batches)
        replace(torch.autograd, "backward", self._backward)
        replace(torch.autograd, "grad", self._grad)
        replace(torch, "save", self._save)
        nn.modules.module.register_module_forward_pre_hook(self._module_called)
        nn.modules.module.register_module_forward_hook(self._module_done, always_call=True)
        register_optimizer_step_pre_hook(lambda optimizer, *_: self._before_update(optimizer))
        atexit.register(self._at_exit)
        armed().runtime.scopes.append(Scope(RunFolder(Path(tempfile.gettempdir()) / "holdfast-replay"), follows_children=True))

    @property
    def saved(self) -> dict[str, Any]:
        """The file's content, read on first use: a batch may be of a class that the script defines."""
        if self._saved is None:
            try:
                content: dict[str, Any] = torch.load(self._path, map_location="cpu", weights_only=True)
            except Exception:  # noqa: BLE001 - a batch of the user's classes, saved by the user's run
                content = torch.load(self._path, map_location="cpu", weights_only=False)
            self._saved = content
        return self._saved

    @property
    def states(self) -> dict[str, dict[str, torch.Tensor]]:
        """The saved tensors of each model, by plain names."""
        states: dict[str, dict[str, Any]] = self.saved["state"]
        return {name: {plain_name(k): v for k, v in state.items() if is_tensor(v)} for name, state in states.items()}

    # The batches

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            drawn = original(iterator)
            return self._replace(drawn, iterator) if torch.is_grad_enabled() else drawn

        return __next__

    def _run_batches(self, _original: Callable[..., Any]) -> Callable[..., Any]:
        def batches(_run: Any, loader: Any, **_how: Any) -> Iterator[Any]:
            if isinstance(loader, torch.utils.data.DataLoader):
                yield from loader
                return
            iterator = iter(loader)
            for drawn in iterator:
                yield self._replace(drawn, iterator)

        return batches

    def _replace(self, drawn: Any, iterator: Any) -> Any:
        """The saved batch for a drawn one; the drawn one if none matches."""
        if os.getpid() != self._pid:
            return drawn
        matching = self._matching(iterator, drawn)
        if not matching:
            return drawn
        index = self._num_replaced.get(id(iterator), 0)
        if index >= len(matching) and self._backwards >= len(matching):
            self._finish(None)
        self._num_replaced[id(iterator)] = index + 1
        entry = matching[min(index, len(matching) - 1)]
        batch = moved(entry["batch"], drawn)
        self._watch()
        self._check_input(batch)
        randomness = {**self.saved["randomness"], **entry["randomness"]}
        if "torch" in randomness:
            torch.set_rng_state(randomness["torch"])
        for device, state in randomness.get("cuda", {}).items():
            if torch.cuda.is_available() and device < torch.cuda.device_count():
                torch.cuda.set_rng_state(state, device)
        return batch

    def _matching(self, iterator: Any, drawn: Any) -> list[dict[str, Any]]:
        entries = [entry for entry in self.saved["batches"] if alike(entry["batch"], drawn)]
        loaders = sorted({entry["loader"] for entry in self.saved["batches"]})
        if len(loaders) > 1 and entries:  # a step with several loaders: told apart by the order of their first batches
            number = loaders[len(self._loaders) % len(loaders)]
            number = self._loaders.setdefault(id(iterator), (iterator, number))[1]
            entries = [entry for entry in entries if entry["loader"] == number]
        return entries

    def _check_input(self, batch: Any) -> None:
        status = input_status(batch)
        if self._input in ("unknown", "finite"):
            self._input = status
        if status not in ("finite", "unknown"):
            names = {field.name: str(field) for field in non_finite_fields(batch)}
            for name, value in leaves(batch):
                if name in names and is_tensor(value):
                    self._operations.taint(value, Origin("input", detail=names[name]))

    # The model

    def _module_called(self, module: nn.Module, _args: Any) -> None:
        if self._finished or os.getpid() != self._pid:
            return
        outermost = self._operations.enter_module(module)
        if outermost and module.training and torch.is_grad_enabled() and next(module.parameters(), None) is not None:
            if all(seen is not module for seen in self._models):
                self._models.append(module)
                self._load_into(module)
            self._watch()

    def _module_done(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self._operations.leave_module()

    def _load_into(self, called: nn.Module) -> None:
        """Load the saved weights into the called model, or one that contains it."""
        missing = {name: state for name, state in self.states.items() if name not in self._loaded}
        live = find_live_objects().modules if missing else []
        for name, state in missing.items():
            match = next((module for module in (called, *live) if related(module, called) and fits(module, state)), None)
            if match is not None:
                self._loaded.add(name)
                for key, tensor in match.state_dict(keep_vars=True).items():
                    tensor.detach().copy_(state[plain_name(key)])
                    if is_bad(tensor):
                        self._operations.taint(tensor, Origin("weights", detail=plain_name(key)))

    # The backward pass, and the end

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._check_loss(tensors)
            result = original(tensors, *args, **kwargs)
            self._check_gradients()
            return result

        return backward

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._check_loss(outputs)
            return original(outputs, inputs, *args, **kwargs)

        return grad

    def _check_loss(self, tensors: Any) -> None:
        if not self._watching or self._finished:
            return
        for tensor in [tensors] if is_tensor(tensors) else list(tensors):
            if tensor.numel() == 1:
                self._loss = float(tensor.detach())
            if is_bad(tensor):
                self._finish(self._operations.origin_of(tensor) or self._first_origin(), reached="the loss")

    def _check_gradients(self) -> None:
        if not self._watching or self._finished:
            return
        self._backwards += 1
        named = [(plain_name(name), p) for model in self._models for name, p in model.named_parameters() if p.grad is not None]
        bad = [(name, parameter) for name, parameter in named if is_bad(parameter.grad)]
        if bad:
            name, parameter = bad[-1]  # nearest to the origin: the backward pass starts at the last layer
            assert parameter.grad is not None
            origin = self._operations.origin_of(parameter.grad) or self._first_origin("backward")
            self._finish(origin, reached=f"the gradient of {name}", bad=[name for name, _ in bad])

    def _first_origin(self, stage: str = "") -> Origin | None:
        origins = self._operations.origins
        return next((o for o in origins if o.kind != "constant" and stage in ("", o.stage)), None)

    def _before_update(self, optimizer: Any) -> None:
        if self._backwards and not self._finished and os.getpid() == self._pid:
            others = [other for other in find_live_objects().optimizers if other is not optimizer and other.param_groups]
            if others and self._num_replaced and not self._skipped_step:
                self._skipped_step = True  # in a GAN, the second network's loss may be the bad one
                for parameter in parameters_of(optimizer):
                    parameter.grad = None
                return
            self._finish(None)

    def _save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(content: Any, to: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(to, (str, os.PathLike)) and Path(to).exists():
                return None  # a checkpoint of the real run
            return original(content, to, *args, **kwargs)

        return save

    def _watch(self) -> None:
        if not self._watching and not self._finished:
            self._watching = True
            self._operations.__enter__()  # type: ignore[no-untyped-call]

    def _finish(self, origin: Origin | None, *, reached: str = "", bad: list[str] | None = None) -> None:
        """Write the result, and exit before the script can change anything."""
        self._stop_watching()
        result: dict[str, Any] = {"found": bool(reached), "reached": reached, "bad_gradients": bad or []}
        if origin is not None:
            result |= origin.as_dict()
        elif reached:
            result["kind"] = "unseen"
        self._write(result)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    def _stop_watching(self) -> None:
        self._finished = True
        if self._watching:
            self._operations.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _write(self, result: dict[str, Any]) -> None:
        notes = []
        if self._watching and not self._num_replaced:
            notes.append("the saved batch was not used, but the script's own first one")
        if self._watching and any(name not in self._loaded for name in self.states):
            notes.append("the saved weights do not fit the model that was called, so its own were used")
        result |= {"input": self._input, "batches": sum(self._num_replaced.values()), "weights_loaded": bool(self._loaded)}
        result |= {"loss": self._loss, "notes": notes}
        temporary = self._result.with_name(f".{self._result.name}.{os.getpid()}")
        temporary.write_text(json.dumps(_for_json(result)), encoding="utf-8")
        temporary.replace(self._result)

    def _at_exit(self) -> None:
        """Report a script that ended, or failed, before the step was complete."""
        if self._finished or os.getpid() != self._pid or multiprocessing.parent_process() is not None:
            return
        self._stop_watching()
        reason = "it ran no backward pass" if self._watching else "it drew no training batch and called no model"
        if not self._result.exists():
            self._write({"found": False, "reached": "", "problem": f"the script ended early: {reason}"})


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def alike(saved: Any, drawn: Any) -> bool:
    """Whether a saved batch can replace a drawn one: the same fields with the same types; a list may differ in length."""
    kinds, others = (
        {name: (value.dtype, value.dim()) if is_tensor(value) else None for name, value in leaves(batch)}
        for batch in (saved, drawn)
    )
    if kinds.keys() != others.keys():
        return type(saved) is type(drawn) and not isinstance(saved, (dict, tuple, torch.Tensor))
    return kinds == others


def moved(batch: Any, drawn: Any) -> Any:
    """A copy of a saved batch on the device of the drawn one."""
    device = next((value.device for _, value in leaves(drawn) if is_tensor(value)), torch.device("cpu"))
    return tree_map(lambda value: value.to(device, copy=True) if is_tensor(value) else value, batch)


def related(module: nn.Module, other: nn.Module) -> bool:
    """Whether one of two modules contains the other."""
    return any(part is other for part in module.modules()) or any(part is module for part in other.modules())


def fits(module: nn.Module, state: dict[str, torch.Tensor]) -> bool:
    """Whether a saved state has the names and shapes of a module."""
    own = {plain_name(name): value.shape for name, value in module.state_dict(keep_vars=True).items() if is_tensor(value)}
    return bool(own) and own == {name: tensor.shape for name, tensor in state.items()}


def _for_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _for_json(part) for key, part in value.items()}
    return [_for_json(part) for part in value] if isinstance(value, (list, tuple)) else value
