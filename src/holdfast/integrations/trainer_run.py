"""The run behind a trainer's callback: that of `holdfast run`, or one that the callback starts. Shared by all trainers."""

from __future__ import annotations

import contextlib
import math
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import holdfast
from holdfast.state.ranks import current_rank

_SPLITS = ("val", "valid", "validation", "eval", "test")
_RESERVED = ("self", "split", "step")  # arguments of `run.log`


class TrainerRun:
    """A run, and what `heal` has asked the trainer for."""

    def __init__(self, **options: Any) -> None:
        """`options` are those of `holdfast.watch`: name, folder, policy, …"""
        self._options = options
        self.run: holdfast.Run | None = None
        self.exit_code, self.wants_save = 0, False
        self._listed: set[tuple[str, int]] = set()  # path and time of each checkpoint that is listed
        self._own: Path | None = None  # the checkpoint that `heal` asked for last

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

    @property
    def num_steps(self) -> int:
        """Steps made so far, with those before a resume."""
        return self.run.num_steps if self.run is not None else 0

    def epoch(self, epoch: int) -> None:
        """An epoch begins."""
        if self.run is not None:
            self.run.epoch(epoch)

    def resumed(self, path: str | Path, step: int, epoch: int | None = None) -> None:
        """The trainer has restored a checkpoint."""
        if self.run is not None:
            self.run.resumed(path, step=step)
        if epoch is not None:
            self.epoch(epoch)

    def wrote(self, *paths: str | Path, step: int | None = None) -> None:
        """List checkpoints that the trainer may have written, on rank 0; one that is listed and has not changed since is not."""
        new = _stamps(path for path in paths if path) - self._listed
        self._listed |= new
        for path, _ in sorted(new, key=lambda stamp: stamp[1]):
            if self.run is not None and current_rank() == 0:
                self.run.saved(path, step=step)

    def has_listed(self, *paths: str | Path) -> None:
        """Checkpoints that were there before this training."""
        self._listed |= _stamps(paths)

    def save(self, folder: str | Path, suffix: str, write: Callable[[str], object]) -> None:
        """Have the trainer write what `heal` asked for into a folder; only the newest of these is kept."""
        path = Path(folder) / f"holdfast-step={self.num_steps}{suffix}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(str(path))
        except (OSError, RuntimeError, ValueError) as error:
            warnings.warn(f"holdfast: no checkpoint was saved: {error}", stacklevel=2)
            return
        self.wrote(path)
        before, self._own = self._own, path
        if before is not None and before != path and current_rank() == 0:
            shutil.rmtree(before) if before.is_dir() else before.unlink(missing_ok=True)

    def evaluated(self, metrics: Mapping[str, Any], *, epoch: int | None = None, split: str | None = None) -> None:
        """Record the metrics of an evaluation, on rank 0; without `split`, by their names: `val_loss`, `eval/f1`, `test_f1`."""
        if epoch is not None:
            self.epoch(epoch)
        for name, value in metrics.items() if current_rank() == 0 else ():
            if self.run is not None and name not in _RESERVED and _is_number(value):
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (hasattr(value, "item") and math.prod(value.shape) == 1)


def _stamps(paths: Iterable[str | Path]) -> set[tuple[str, int]]:
    """When each was written, of a folder its newest file; those that no longer exist are skipped."""
    stamps = set()
    for path in map(Path, paths):
        with contextlib.suppress(OSError):
            stamps.add((str(path), max(file.stat().st_mtime_ns for file in (path, *path.glob("*")))))
    return stamps
