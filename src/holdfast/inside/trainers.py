"""Known trainers resume by themselves: a restarted script that names no checkpoint to its trainer gets the one that was chosen.

Hugging Face: `Trainer.train(resume_from_checkpoint=…)`. Lightning: `Trainer.fit(ckpt_path=…)`. A script that names one keeps it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_TRAINERS = {  # module: class, method, argument, place among the positional ones behind `self`
    "transformers.trainer": ("Trainer", "train", "resume_from_checkpoint", 0),
    "lightning.pytorch.trainer.trainer": ("Trainer", "fit", "ckpt_path", 4),
    "pytorch_lightning.trainer.trainer": ("Trainer", "fit", "ckpt_path", 4),
}


def resume_with(checkpoint: str) -> None:
    """Have the trainers that are imported, or will be, go on from a checkpoint of their own kind."""
    for name in _TRAINERS:
        if (module := sys.modules.get(name)) is not None:
            fill_in(module, checkpoint)
    sys.meta_path.insert(0, _Listener(checkpoint))


def fill_in(module: ModuleType, checkpoint: str) -> None:
    """Wrap the method of the trainer in a module that was imported."""
    kind, method, argument, place = _TRAINERS[module.__name__]
    owner = getattr(module, kind, None)
    original = getattr(owner, method, None)
    if owner is None or original is None or not _is_kind(module.__name__, Path(checkpoint)):
        return

    @functools.wraps(original)
    def resumed(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) <= place and not kwargs.get(argument):
            kwargs[argument] = checkpoint
        return original(trainer, *args, **kwargs)

    setattr(owner, method, resumed)


def _is_kind(module: str, checkpoint: Path) -> bool:
    if module.startswith("transformers"):
        return (checkpoint / "trainer_state.json").exists()
    return checkpoint.suffix == ".ckpt"


class _Listener:
    """On `sys.meta_path`: lets the real finders load a trainer's module, and fills in when it is there."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the other finders say, with an ear at the loader."""
        if name not in _TRAINERS:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                return self._listen_to(spec)
        return None

    def _listen_to(self, spec: ModuleSpec) -> ModuleSpec:
        loader: Any = spec.loader
        if not hasattr(loader, "exec_module") or not hasattr(loader, "__dict__"):
            return spec
        original: Callable[[ModuleType], None] = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            original(module)
            with contextlib.suppress(Exception):  # the script goes on without it
                fill_in(module, self._checkpoint)

        loader.exec_module = exec_module
        return spec
