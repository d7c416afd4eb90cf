"""Good checkpoints that a script is about to overwrite with NaN: the new one goes beside it. Loaded when that first happens.

A training that saves NaN is dead already, so that reading the old file costs nothing that matters; still, one larger than two
gigabytes is only looked at from outside: to protect one that was bad costs a second name, to lose a good one costs the training.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.inside.shield import Shield
from holdfast.inside.taps.registry import Taps
from holdfast.signals.lineage import whole_path

if TYPE_CHECKING:
    from holdfast.inside.observers.checkpoint_log import CheckpointLog

_READ_AT_MOST = 2 << 30  # bytes
_WORTHLESS = ("torn", "non-finite")  # nothing is lost with a file in such a state


class Protected:
    """Which files are worth keeping, and where what would take their place goes."""

    def __init__(self, checkpoint_log: CheckpointLog) -> None:
        self._news = checkpoint_log
        self._verdicts: dict[str, tuple[tuple[int, int], bool]] = {}
        self._diverted: dict[str, list[str]] = {}
        self._tainted: set[str] = set()  # files that were saved with NaN in them
        self._aims: set[str] = set()  # paths that something with NaN in it is about to be moved to
        self._watches_renames = False

    def other_name(self, path: str) -> str | None:
        """Where to save instead, if a good file lies at the path: beside it, the step in the name.

        However many come, the first and the newest stay.
        """
        if not self._is_good(path):
            return None
        whole = Path(path)
        stem, end = (whole.name.rsplit(".", 1)[0], whole.suffix) if whole.suffix else (whole.name, "")
        step = self._news.step()
        name = f"{stem}.non-finite{'' if step is None else f'-step-{step}'}"
        chosen, number = whole.with_name(f"{name}{end}"), 1
        while chosen.exists():
            number += 1
            chosen = whole.with_name(f"{name}-{number}{end}")
        ours = self._diverted.setdefault(path, [])
        if len(ours) > 1:
            with contextlib.suppress(OSError):
                Path(ours.pop()).unlink()
        ours.append(str(chosen))
        return str(chosen)

    def saved(self, path: str, *, bad: bool, by_name: bool) -> None:
        """Something was saved; `by_name`: it is still to be moved there."""
        known = self._aims if by_name else self._tainted
        known.add(path) if bad else known.discard(path)

    def watch_again(self, taps: Taps, shield: Shield) -> None:
        """The hooks were taken out and are put back."""
        if self._watches_renames:
            self._watches_renames = False
            self.watch_renames(taps, shield)

    def watch_renames(self, taps: Taps, shield: Shield) -> None:
        """From now on, look at what is moved: saving under another name and moving it over the good one is common."""
        if self._watches_renames:
            return
        self._watches_renames = True
        aim = shield(self._aim_of)

        def watched(original: Callable[..., Any]) -> Callable[..., Any]:
            def move(src: Any, dst: Any, **folders: Any) -> Any:
                other = aim(src, dst) if not folders else None
                return original(src, dst if other is None else other, **folders)

            return move

        taps.wrap("os.replace", watched)
        taps.wrap("os.rename", watched)

    def _aim_of(self, source: Any, destination: Any) -> str | None:
        """Where to move a file instead; None for all but those with NaN in them."""
        if isinstance(source, int) or isinstance(destination, int):
            return None
        old, new = (whole_path(os.fsdecode(path)) for path in (source, destination))
        if old not in self._tainted and new not in self._aims:
            self._tainted.discard(new)
            return None
        self._tainted.discard(old)
        self._aims.discard(new)
        other = self.other_name(new)
        if other is None:
            self._tainted.add(new)
        else:
            self._news.row("diverted", path=new, diverted_to=other, moved_from=old)
        return other

    def _is_good(self, path: str) -> bool:
        """Whether a file is there that must not be lost."""
        try:
            found = Path(path).stat()
        except OSError:
            return False
        if not found.st_size:
            return False
        state = (found.st_size, found.st_mtime_ns)
        known = self._verdicts.get(path)
        if known is None or known[0] != state:
            known = self._verdicts[path] = (state, _state_of(path, found.st_size) not in _WORTHLESS)
        return known[1]


def _state_of(path: str, size: int) -> str:
    """The state of a checkpoint file; one that cannot be understood may still be worth keeping."""
    try:
        from holdfast.checkpoints.formats.open import open_checkpoint
        from holdfast.checkpoints.verify import verify

        contents = open_checkpoint(Path(path))
        if contents.state != "clean" or size > _READ_AT_MOST:
            return contents.state
        return verify(contents).state
    except Exception:  # noqa: BLE001 - what cannot be looked at is kept
        return "unknown"
