"""Verify checkpoints one after the other, with a bar on stderr where that takes long and somebody looks."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.checkpoints.contents import Contents
    from holdfast.checkpoints.verify import Verdict

_PATIENCE = 0.5  # seconds without a bar


class Bar:
    """The checkpoints that are to be verified, and the bar that shows how far that is. Use as a context."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._started = time.perf_counter()
        self._bar: Any = None
        self._done, self._total = 0, 0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def verified(self) -> Iterator[tuple[Contents, Verdict]]:
        """Open and verify each in turn."""
        from holdfast.checkpoints.verify import verify
        from holdfast.cli.checkpoints.layout import fast_crc32
        from holdfast.cli.checkpoints.paths import opened

        crc32 = fast_crc32()
        self._total = sum(map(_size, self._paths))
        for contents in opened(self._paths):
            yield contents, verify(contents, crc32=crc32, progress=self._advance, must_hold_tensors=True)
            self._done += contents.size

    def verify(self, contents: Contents, *, of: int) -> Verdict:
        """Verify one of several that were opened; `of` is how many bytes they have in all."""
        from holdfast.checkpoints.verify import verify
        from holdfast.cli.checkpoints.layout import fast_crc32

        self._total = of
        verdict = verify(contents, crc32=fast_crc32(), progress=self._advance, must_hold_tensors=True)
        self._done += contents.size
        return verdict

    def above(self, tell: Callable[[], None]) -> None:
        """Print something above the bar."""
        if self._bar is None:
            tell()
            return
        self._bar.stop()
        tell()
        sys.stdout.flush()
        self._bar.start()

    def _advance(self, done: int, total: int) -> None:
        if self._bar is None:
            if time.perf_counter() - self._started < _PATIENCE or not sys.stderr.isatty():
                return
            self._bar = _make_bar()
        self._bar.update(self._bar.task_ids[0], completed=self._done + done, total=max(self._total, self._done + total))


def _make_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = ("verifying", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("", total=None)
    bar.start()
    return bar


def _size(path: Path) -> int:
    """About how many bytes lie at a path."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        return path.stat().st_size
    return 0
