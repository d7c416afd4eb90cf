"""Good checkpoints that a script is about to overwrite: with NaN, or after a restart. Loaded when that first happens.

A checkpoint with NaN goes beside the good one. While a restarted script is fast-forwarded, its saves replace nothing: they would
hold the state of a later step. The best checkpoint of the earlier attempt is set aside before its first overwrite, because the
script has forgotten how good it was.

A training that saves NaN is dead already, so that reading the old file costs nothing that matters; still, one larger than two
gigabytes is only looked at from outside: to protect one that was bad costs a second name, to lose a good one costs the training.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.inside.shield import Shield
from holdfast.inside.taps.registry import Taps
from holdfast.signals.lineage import whole_path

if TYPE_CHECKING:
    from holdfast.inside.observers.checkpoint_log import CheckpointLog

_READ_AT_MOST = 2 << 30  # bytes
_SUFFIXES = (".pt", ".pth", ".tar", ".ckpt", ".bin", ".safetensors")
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
        self._best: dict[str, int] = {}  # the best checkpoints of the earlier attempt, with the number of this one
        self._unwanted: set[str] = set()  # files saved under another name while fast-forwarding
        self.num_skipped = 0  # saves while fast-forwarding

    def set_best_aside(self, folders: Iterable[Path], attempt: int) -> None:
        """Keep the best checkpoints in these folders, where an earlier attempt saved."""
        files = (file for folder in folders if folder.is_dir() for file in folder.iterdir() if file.suffix in _SUFFIXES)
        self._best = {str(file): attempt for file in files if "best" in file.name.lower()}

    def is_skipped(self, path: str) -> bool:
        """Whether a save while fast-forwarding is not made: it would replace a file. Others may be moved over one later."""
        if Path(path).exists():
            self.num_skipped += 1
            return True
        self._unwanted.add(path)
        return False

    def before_overwrite(self, path: str) -> None:
        """Set the best checkpoint of the earlier attempt aside, once."""
        attempt = self._best.pop(path, None)
        if attempt is not None:
            whole = Path(path)
            aside = whole.with_name(f"{whole.stem}.attempt-{attempt - 1}{whole.suffix}")
            whole.rename(aside)
            self._news.row("set-aside", path=path, set_aside=str(aside))

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
                if other == "":
                    return Path(src).unlink()
                return original(src, dst if other is None else other, **folders)

            return move

        taps.wrap("os.replace", watched)
        taps.wrap("os.rename", watched)

    def _aim_of(self, source: Any, destination: Any) -> str | None:
        """Where to move a file instead: nowhere ("") if nothing may be replaced now; None for all that are good."""
        if isinstance(source, int) or isinstance(destination, int):
            return None
        old, new = (whole_path(os.fsdecode(path)) for path in (source, destination))
        if old in self._unwanted:
            self._unwanted.discard(old)
            if Path(new).exists():
                self.num_skipped += 1
                return ""
            self._unwanted.add(new)
            return None
        if new in self._best:
            self.before_overwrite(new)
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
