"""The run behind a trainer's callback: that of `holdfast run`, or one that the callback starts. Shared by all trainers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import holdfast
from holdfast.checkpoints.clean import newest_clean
from holdfast.state.ranks import current_rank, world_size

_SPLITS = ("val", "valid", "validation", "eval", "test")
_RESERVED = ("self", "split", "step")  # arguments of `run.log`


class TrainerRun:
    """A run, and what `heal` has asked the trainer for."""

    def __init__(self, **options: Any) -> None:
        """`options` are those of `holdfast.watch`: name, folder, policy, …"""
        self._options = options
        self.run: holdfast.Run | None = None
        self.exit_code, self.wants_save = 0, False

    def begin(self, models: Any, optimizers: Any, *, stop: Callable[[], object] | None) -> holdfast.Run:
        """Join the run of `holdfast run`, or start one; `stop` ends the training by the trainer's own means, if it has some."""
        if self.run is None or self.run.closed:
            self.run = holdfast.watch(models, optimizers, **self._options)
        self.exit_code, self.wants_save = 0, False

        def stop_trainer(_reason: str, code: int) -> None:
            self.exit_code = code
            if stop is not None:
                stop()

        self.run.ask_trainer(stop=stop_trainer if stop is not None else None, save=lambda: setattr(self, "wants_save", True))
        return self.run

    def takes_save(self) -> bool:
        """Whether the trainer is to save now; asked once for each request."""
        wanted, self.wants_save = self.wants_save, False
        return wanted

    def evaluated(self, metrics: Mapping[str, Any], *, epoch: int | None = None, split: str | None = None) -> None:
        """Record the metrics of an evaluation, on rank 0; without `split`, by their names: `val_loss`, `eval/f1`, `test_f1`."""
        if self.run is None:
            return
        if epoch is not None:
            self.run.epoch(epoch)
        for name, value in metrics.items() if current_rank() == 0 else ():
            if name not in _RESERVED and _is_number(value):
                self.run.log(split=split or split_of(name), **{name: value})

    def end(self) -> None:
        """Close the run; where the training was stopped because it is broken, the process ends with that exit code."""
        if self.run is not None:
            self.run.ask_trainer()
            self.run.close()
        if self.exit_code:
            raise SystemExit(self.exit_code)


def split_of(name: str) -> str:
    """The split that a metric's name tells: `val` for every kind of evaluation but a test; else `train`."""
    first = name.lower().replace("/", "_").partition("_")[0]
    return "train" if first not in _SPLITS else "test" if first == "test" else "val"


def read_positions(positions: Iterable[holdfast.Position[Any]]) -> list[list[Any]]:
    """The positions in the data of each rank, whose random generators differ; called on all of them when a trainer saves."""
    every = [[position.state_dict() for position in positions]]
    if world_size() > 1 and torch.distributed.is_initialized():
        own, every = every[0], [[] for _ in range(world_size())]
        torch.distributed.all_gather_object(every, own)
    return every


def set_positions(positions: Iterable[holdfast.Position[Any]], saved: list[list[Any]], *, counted: bool = False) -> None:
    """Restore the positions of this rank, if some were saved; with another number of ranks than before, those of the first."""
    own = saved[current_rank() if len(saved) == world_size() else 0] if saved else ()
    for position, state in zip(positions, own, strict=False):
        position.load_state_dict(state, counted=counted)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (hasattr(value, "item") and math.prod(value.shape) == 1)


def first_clean(paths: Iterable[Path]) -> str | None:
    """The first checkpoint that is whole and finite, with a warning about those before it; None if there is none."""
    found, problems = newest_clean(paths)
    for path, problem in problems.items():
        instead = f"{found} is used instead" if found is not None else "no checkpoint before it is clean"
        warnings.warn(f"holdfast: {path} is not used: {problem} {instead}.", stacklevel=3)
    return str(found) if found is not None else None
