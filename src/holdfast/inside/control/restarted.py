"""What a process that was started again is told: from where to go on, and what is different this time.

HOLDFAST_ATTEMPT             2, 3, …
HOLDFAST_CHECKPOINT          the checkpoint that was chosen, for a script that loads it itself; HOLDFAST_CHECKPOINT_STEP
HOLDFAST_KEPT                Holdfast's own, for one that does not: see fast_forward.py; HOLDFAST_KEPT_STEP
HOLDFAST_WORKERS             loader workers at most
HOLDFAST_MICRO_BATCHES       parts that a `@run.step` splits every batch into
HOLDFAST_LR_FACTOR           on the learning rate
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.inside.taps.imports import when_imported
from holdfast.inside.taps.registry import Taps

_WORKERS_PLACE = 4  # among the positional arguments behind the data set
_ONLY_WITH_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The environment of a later attempt."""

    attempt: int
    checkpoint: str | None = None
    step: int | None = None
    kept: str | None = None
    kept_step: int | None = None
    workers: int | None = None
    parts: int = 1
    lr_factor: float = 1.0

    def loaded_by_script(self, paths: Iterable[str]) -> bool:
        """Whether one of these files is the checkpoint, or lies in it."""
        if self.checkpoint is None:
            return False
        chosen = Path(self.checkpoint)
        return any(Path(path) == chosen or chosen in Path(path).parents for path in paths)


@cache
def restarted() -> Restarted | None:
    """What this process was told; None in a first attempt."""
    return read(os.environ)


def step_loaded(paths: Iterable[str]) -> int:
    """The step at which a script that was started again goes on, if it has loaded what was chosen for it; else 0."""
    told = restarted()
    return told.step if told is not None and told.step is not None and told.loaded_by_script(paths) else 0


def read(environment: Mapping[str, str]) -> Restarted | None:
    """The same from any environment; what cannot be read is as if it were not there."""
    attempt = _whole(environment.get("HOLDFAST_ATTEMPT"))
    if attempt is None or not environment.get("HOLDFAST_RUN"):
        return None
    return Restarted(
        attempt=attempt,
        checkpoint=environment.get("HOLDFAST_CHECKPOINT"),
        step=_whole(environment.get("HOLDFAST_CHECKPOINT_STEP")),
        kept=environment.get("HOLDFAST_KEPT"),
        kept_step=_whole(environment.get("HOLDFAST_KEPT_STEP")),
        workers=_whole(environment.get("HOLDFAST_WORKERS")),
        parts=_whole(environment.get("HOLDFAST_MICRO_BATCHES")) or 1,
        lr_factor=_number(environment.get("HOLDFAST_LR_FACTOR")) or 1.0,
    )


def cap_workers(taps: Taps, at_most: int) -> None:
    """Have every loader made from now on use fewer workers."""

    def capped(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(loader: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            args, kwargs = fewer(args, kwargs, at_most)
            original(loader, dataset, *args, **kwargs)

        return __init__

    taps.wrap("torch.utils.data.DataLoader.__init__", capped)


def fewer(args: tuple[Any, ...], kwargs: dict[str, Any], at_most: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a loader with so many workers at most; without any, options that need some go."""
    by_place = len(args) > _WORKERS_PLACE
    asked = args[_WORKERS_PLACE] if by_place else kwargs.get("num_workers", 0)
    if not isinstance(asked, int) or asked <= at_most:
        return args, kwargs
    if by_place:
        args = (*args[:_WORKERS_PLACE], at_most, *args[_WORKERS_PLACE + 1 :])
    else:
        kwargs = {**kwargs, "num_workers": at_most}
    if at_most == 0:
        kwargs = {name: value for name, value in kwargs.items() if name not in _ONLY_WITH_WORKERS}
    return args, kwargs


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


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
