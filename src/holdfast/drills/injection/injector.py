"""Puts the planned faults into this process: where torch hands out batches, computes gradients, updates and saves.

It is in place before Holdfast's own hooks, so that these see a fault as they would see one of the script's own. A training
without the fault's places is not touched: only what a fault uses is hung in, and what a control notes.
"""

from __future__ import annotations

import atexit
import inspect
import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from holdfast.drills.fault import hooks_of
from holdfast.drills.faults import find
from holdfast.drills.injection import keras_optimizer
from holdfast.drills.injection.context import FaultContext, Optimizer
from holdfast.drills.injection.facts import Facts
from holdfast.drills.injection.live import Live
from holdfast.drills.injection.notes import Notes
from holdfast.drills.plan import Plan
from holdfast.inside.gradients.non_finite import is_state
from holdfast.inside.taps.imports import when_imported
from holdfast.inside.taps.registry import Hook, Patches

_COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "barrier", "reduce")
_LIGHTNING = ("lightning.fabric.utilities.cloud_io", "lightning_fabric.utilities.cloud_io")  # saves into memory, then writes that
_LOADER = inspect.signature(DataLoader.__init__)


def _needs_floats(live: Live) -> bool:
    return "float-inputs" in live.fault.needs


def begin() -> None:
    """Called when torch is imported, before Holdfast is armed: inject what the environment asks for."""
    plan = Plan.from_environment(os.environ)
    if plan is not None:
        _seed_all(plan.seed)
        Injector(plan).install()


def _seed_all(seed: int) -> None:
    """Runs of one seed begin alike; a script that seeds itself still does."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


class Injector:
    """The faults of this process and the places where they get in."""

    is_holdfast = True  # its hooks are no part of a model that is pickled

    def __init__(self, plan: Plan) -> None:
        self.context = FaultContext(plan.folder, plan.seed)
        self.notes = Notes(plan.folder)
        self.facts = Facts()
        self._control = not plan.faults
        self._patches = Patches()
        self._drawn = False  # whether a loader has handed out a batch to learn from
        self._whole = False  # whether that had whole numbers only (images as bytes): the model is fed others
        self._learned_from = 0  # the data set of the first batches
        self._in_memory: io.BytesIO | None = None  # a checkpoint that was saved there
        self._called: nn.Module | None = None  # the outermost module that computes right now
        self._hooked: list[Any] = []
        self._live: list[Live] = []
        for number, planned in enumerate(plan.faults):
            fault = find(planned.code, planned.source)(planned.strength)
            if fault.rank in (None, self.context.rank):
                self._live.append(Live(fault, planned, number, self.notes, self.context.rank))
        self._uses = frozenset().union(*(hooks_of(live.fault) for live in self._live))

    def install(self) -> None:
        """Hang everything in."""
        self.context.begin()
        self._handle = register_optimizer_step_post_hook(Hook(lambda optimizer, *_: self._after_step(optimizer)))
        replace, uses = self._patches.replace, self._uses
        when_imported({keras_optimizer.MODULE: lambda module: keras_optimizer.tell_updates(module, replace, self._after_step)})
        if "loader" in uses or self._control:
            replace(DataLoader, "__init__", self._make_loader)
        if uses & {"batch", "held_out_batch"} or self._control:
            replace(_BaseDataLoaderIter, "__next__", self._next_batch)
        if "sample" in uses:
            for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
                replace(fetcher, "fetch", self._fetch)
        if "gradients" in uses:
            replace(torch.autograd, "backward", self._backward)
        if uses & {"saving", "saved"} or self._control:
            replace(torch, "save", self._save)
            replace(Path, "write_bytes", self._write_bytes)
            when_imported(dict.fromkeys(_LIGHTNING, lambda module: replace(module, "_atomic_save", self._save)))
        if "collective" in uses and torch.distributed.is_available():
            for name in _COLLECTIVES:
                replace(torch.distributed, name, self._collective(name))
        if self._control:
            replace(torch.autocast, "__enter__", self._autocast)
            self.facts.listen()
            atexit.register(self._note_facts, os.getpid())

    def remove(self) -> None:
        """Take everything out."""
        self._handle.remove()
        self._patches.restore()
        while self._hooked:
            self._hooked.pop().remove()

    def _note_facts(self, pid: int) -> None:
        if self.context.step and os.getpid() == pid:
            self.notes.write("facts", rank=self.context.rank, have=sorted(self.facts.have), steps=self.context.step)

    # Where torch passes by

    def _after_step(self, optimizer: Optimizer) -> None:
        if not self.context.is_main(optimizer):
            return
        self.context.begin(self.context.step + 1)
        if self._control and self.context.step == 1:
            self.facts.look_at(self.context)
        for live in self._due("update"):
            live.happen(self.context, live.fault.update, self.context)
        self._listen_to_model()

    def _listen_to_model(self) -> None:
        """Hang into the model for the next forward pass, where a fault is due there."""
        self._called = None
        while self._hooked:
            self._hooked.pop().remove()
        looks = self._control and self.context.step == 1
        if self._at_model() or self._due("output") or looks:
            for module in (self.context.model, *self.context.called_modules()):
                self._hooked.append(module.register_forward_pre_hook(Hook(self._inputs), prepend=True, with_kwargs=True))
                self._hooked.append(module.register_forward_hook(Hook(self._output)))

    def _at_model(self) -> list[Live]:
        """Faults in batches that happen to what the model is fed: there is no loader, or its batches have no such values."""
        return [live for live in self._due("batch") if not self._drawn or (self._whole and _needs_floats(live))]

    def _inputs(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        outermost = self._called is None
        if outermost:
            self._called = module
        if not outermost or not self._learns():
            return None
        if self._control:
            self.facts.inputs_seen((*inputs, named), self.context)
        if inputs and (not named or self.context.has_floats(inputs)):
            return self._through("batch", inputs, self._at_model()), named
        return inputs, self._through("batch", named, self._at_model())

    def _output(self, module: nn.Module, _inputs: Any, output: Any) -> Any:
        if self._called is not module:
            return None
        self._called = None
        return self._through("output", output) if self._learns() else None

    def _learns(self) -> bool:
        return self.context.model.training and torch.is_grad_enabled()

    def _through(self, place: str, value: Any, lives: list[Live] | None = None) -> Any:
        for live in self._due(place) if lives is None else lives:
            value = live.happen(self.context, getattr(live.fault, place), value, self.context, otherwise=value)
        return value

    def _due(self, place: str) -> list[Live]:
        return [live for live in self._live if place in live.places and live.due(self.context.step)]

    def _make_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            try:
                arguments = dict(_LOADER.bind(loader, *args, **kwargs).arguments)
            except TypeError:  # the script's own mistake: let torch say it
                original(loader, *args, **kwargs)
                return
            del arguments["self"]
            self.facts.loader_made(arguments)
            for live in self._due("loader"):
                live.happen(self.context, live.fault.loader, arguments, self.context)
            original(loader, **arguments)

        return __init__

    def _autocast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(autocast: Any) -> Any:
            self.facts.precision_chosen(autocast)
            return original(autocast)

        return __enter__

    def _next_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            batch = original(iterator)
            training = self._is_training(iterator)
            if self._control:
                self.facts.batch_seen(batch, self.context, training=training)
            if training and not self._drawn:
                self._drawn, self._whole = True, not self.context.has_floats(batch)
            if not training:
                return self._through("held_out_batch", batch)
            return self._through("batch", batch, [live for live in self._due("batch") if live not in self._at_model()])

        return __next__

    def _is_training(self, iterator: Any) -> bool:
        """Whether a batch that is drawn now is one to learn from; trainers draw some before they call `model.train()`."""
        if not torch.is_grad_enabled():
            return False
        dataset = id(getattr(iterator, "_dataset", None))
        if self.context.step == 0:
            self._learned_from = dataset
            return True
        return dataset == self._learned_from or self.context.model.training

    def _fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(fetcher: Any, possibly_batched_index: Any) -> Any:
            several = isinstance(possibly_batched_index, list)
            indices = possibly_batched_index if several else [possibly_batched_index]
            for live in self._due("sample"):
                live.happen(self.context, live.fault.sample, indices, self.context)
            return original(fetcher, possibly_batched_index)

        return fetch

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            for live in self._due("gradients"):
                live.happen(self.context, live.fault.gradients, self.context)
            return result

        return backward

    def _save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, str | os.PathLike):
                self.facts.have.add("saves")
                for live in self._due("saving"):
                    live.happen(self.context, live.fault.saving, Path(f), self.context)
            result = original(obj, f, *args, **kwargs)
            self._in_memory = f if isinstance(f, io.BytesIO) and is_state(obj) else None
            if isinstance(f, str | os.PathLike) and is_state(obj):
                for live in self._due("saved"):
                    live.happen(self.context, live.fault.saved, Path(f), self.context)
            return result

        return save

    def _write_bytes(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A checkpoint that was saved into memory gets to the disk: Ultralytics writes the same bytes to several files."""

        def write_bytes(path: Path, data: Any) -> Any:
            memory = self._in_memory
            is_save = memory is not None and not memory.closed and len(data) == memory.getbuffer().nbytes
            if is_save:
                self.facts.have.add("saves")
                for live in self._due("saving"):
                    live.happen(self.context, live.fault.saving, path, self.context)
            result = original(path, data)
            if is_save:
                for live in self._due("saved"):
                    live.happen(self.context, live.fault.saved, path, self.context)
            return result

        return write_bytes

    def _collective(self, name: str) -> Callable[..., Any]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def collective(*args: Any, **kwargs: Any) -> Any:
                for live in self._due("collective"):
                    if live.happen(self.context, live.fault.collective, name, self.context):
                        return None
                return original(*args, **kwargs)

            return collective

        return make
