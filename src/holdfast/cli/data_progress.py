"""How far a look at data is: a bar with rate and time left on stderr, where that takes long and somebody looks."""

from __future__ import annotations

import sys
import time
from typing import Any

from holdfast.cli.show import duration

_PATIENCE = 0.5  # seconds without a bar
_EVERY = 0.05


class Bar:
    """The bar; it shows itself when it is needed. Use as a context."""

    def __init__(self) -> None:
        self._started = self._shown = time.perf_counter()
        self._bar: Any = None
        self._done, self._total = 0, 0
        self._first, self._began = 0, 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int, total: int) -> None:
        """So many of so many are done."""
        now = time.perf_counter()
        if not self._total:
            self._first, self._began = done - 1, now
        self._done, self._total = done, total
        if now - self._shown < _EVERY:
            return
        self._shown = now
        if self._bar is None:
            if now - self._started < _PATIENCE or not sys.stderr.isatty():
                return
            self._bar = _make_bar(self._first)
        rate = (done - self._first) / max(now - self._began, 1e-3)
        speed = f"{rate:,.0f}/s  {duration((total - done) / rate)} left" if now - self._began > _PATIENCE else ""
        self._bar.update(self._bar.task_ids[0], completed=done, total=max(total, done), said=speed)

    def tell_stopped(self, *, kept: bool) -> None:
        """What Ctrl-C leaves behind."""
        self.__exit__()
        of = f"{self._done:,} of {self._total:,}" if self._total else "nothing"
        then = "the next run continues from there" if kept and self._total else "nothing was kept"
        print(f"stopped: {of} read; {then}", file=sys.stderr)


def _make_bar(first: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = ("looking", BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=None, completed=first, said="")
    bar.start()
    return bar
