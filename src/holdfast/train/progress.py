"""What a person sees while it trains: a bar in a terminal, one line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from holdfast.units import duration

_EVERY = 20  # updates between two looks at the loss: reading it waits for the GPU
_SHOWN = 4  # metrics of an epoch's line


@contextmanager
def counting(what: str, *, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar for something that is done before the training, such as caching; one line where there is no terminal."""
    console = Console(file=sys.stdout, highlight=False)
    if shown and not console.is_terminal:
        print(f"holdfast: {what}", flush=True)
    if not shown or not console.is_terminal:
        yield None
        return
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with RichProgress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)


class Progress:
    """The progress of a training. Nothing is printed where `shown` is False."""

    def __init__(self, epochs: int, batches: int, *, shown: bool) -> None:
        self._epochs, self._batches, self._shown = epochs, batches, shown
        self._console = Console(file=sys.stdout, highlight=False)
        self._bar: RichProgress | None = None
        self._task: Any = None
        self._began = self._epoch_began = time.monotonic()
        self._done = 0
        if shown and self._console.is_terminal:
            text = TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}")
            self._bar = RichProgress(*text, TextColumn("eta"), TimeRemainingColumn(), console=self._console, transient=True)
            self._task = self._bar.add_task("", total=epochs * batches, loss="")
            self._bar.start()

    def say(self, text: str) -> None:
        """Print one line."""
        if self._shown:
            (self._bar.console if self._bar is not None else self._console).print(
                f"holdfast: {text}", markup=False, soft_wrap=True
            )

    def step(self, epoch: int, batch: int, total: torch.Tensor, updates: int) -> None:
        """An update was made."""
        if self._bar is not None:
            shown: dict[str, Any] = {"loss": f"loss {float(total) / updates:.4g}"} if updates % _EVERY == 1 else {}
            done = epoch * self._batches + batch
            self._bar.update(self._task, completed=done, description=f"epoch {epoch + 1}/{self._epochs}", **shown)

    def evaluating(self, epoch: int) -> None:
        """The evaluation of an epoch begins."""
        if self._bar is not None:
            self._bar.update(self._task, description=f"epoch {epoch + 1}/{self._epochs}, evaluating")

    def epoch_seconds(self) -> float:
        """Seconds since the epoch began."""
        return time.monotonic() - self._epoch_began

    def epoch_done(self, epoch: int, loss: float, metrics: Mapping[str, float], best: Mapping[str, Any] | None) -> None:
        """Print the line of an epoch."""
        self._done += 1
        left = (time.monotonic() - self._began) / self._done * (self._epochs - epoch - 1)
        overall = [name for name in metrics if "/" not in name][:_SHOWN]
        values = "  ".join(f"{name} {metrics[name]:.4g}" for name in overall)
        mark = "  best" if best is not None and best["epoch"] == epoch + 1 else ""
        eta = f"  eta {duration(left)}" if epoch + 1 < self._epochs else ""
        self._print(f"epoch {epoch + 1}/{self._epochs}  loss {loss:.4g}  {values}  {duration(self.epoch_seconds())}{eta}{mark}")
        self._epoch_began = time.monotonic()

    def _print(self, line: str) -> None:
        if self._shown:
            (self._bar.console if self._bar is not None else self._console).print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
