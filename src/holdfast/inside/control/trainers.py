"""Known trainers resume by themselves: a restarted script that names no checkpoint to its trainer gets the one that was chosen.

Hugging Face: `Trainer.train(resume_from_checkpoint=…)`. Lightning: `Trainer.fit(ckpt_path=…)`. A script that names one keeps it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.inside.taps.imports import when_imported

_TRAINERS = {  # module: class, method, argument, place among the positional ones behind `self`
    "transformers.trainer": ("Trainer", "train", "resume_from_checkpoint", 0),
    "lightning.pytorch.trainer.trainer": ("Trainer", "fit", "ckpt_path", 4),
    "pytorch_lightning.trainer.trainer": ("Trainer", "fit", "ckpt_path", 4),
}


def resume_with(checkpoint: str) -> None:
    """Have the trainers that are imported, or will be, go on from a checkpoint of their own kind."""
    when_imported(dict.fromkeys(_TRAINERS, lambda module: fill_in(module, checkpoint)))


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
