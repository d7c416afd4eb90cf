"""Keep good checkpoints from being overwritten: with NaN, or after a restart. Imported when that first happens.

A checkpoint with NaN gets another name. While a restarted script is fast-forwarded, its saves replace nothing: they would hold
the state of a later step. The best checkpoint of the earlier attempt is set aside before its first overwrite, because the
script has forgotten how good it was.

A file counts as good unless it is empty or this process saved it with NaN: protecting a bad file costs a second name, losing a
good one costs the training.
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

_SUFFIXES = (".pt", ".pth", ".tar", ".ckpt", ".bin", ".safetensors")


class ProtectedCheckpoints:
    """Decides which files must not be overwritten, and where the new content goes instead."""

    def __init__(self, checkpoint_log: CheckpointLog) -> None:
        self._log = checkpoint_log
        self._diverted: dict[str, list[str]] = {}
        self._bad_files: set[str] = set()  # saved with NaN
        self._bad_destinations: set[str] = set()  # a buffer with NaN is about to be moved there
        self._watches_renames = False
        self._best: dict[str, int] = {}  # the best checkpoints of the earlier attempt, with the number of this attempt
        self._unwanted: set[str] = set()  # files saved under a new name, or destinations of a buffer, while fast-forwarding
        self.num_skipped = 0  # saves while fast-forwarding

    def set_best_aside(self, folders: Iterable[Path], attempt: int) -> None:
        """Keep the best checkpoints in these folders, where an earlier attempt saved."""
        files = (file for folder in folders if folder.is_dir() for file in folder.iterdir() if file.suffix in _SUFFIXES)
        self._best = {str(file): attempt for file in files if "best" in file.name.lower()}

    def is_skipped(self, path: str, kind: str) -> bool:
        """Whether a save while fast-forwarding is skipped because it would replace a file. Others may be moved over one later.

        A file that the script has opened itself is empty by now, and has to be written.
        """
        if kind == "path" and Path(path).exists():
            self.num_skipped += 1
            return True
        if kind != "file":
            self._unwanted.add(path)
        return False

    def before_overwrite(self, path: str) -> None:
        """Set the best checkpoint of the earlier attempt aside, once."""
        attempt = self._best.pop(path, None)
        if attempt is not None:
            file = Path(path)
            aside = file.with_name(f"{file.stem}.attempt-{attempt - 1}{file.suffix}")
            file.rename(aside)
            self._log.row("set-aside", path=path, set_aside=str(aside))

    def divert(self, path: str) -> str | None:
        """Where to save instead of over a good file: beside it, with the step in the name. The first and the last are kept."""
        if not self._is_good(path):
            return None
        original, step = Path(path), self._log.step()
        name = f"{original.stem}.non-finite{'' if step is None else f'-step-{step}'}"
        chosen, number = original.with_name(f"{name}{original.suffix}"), 1
        while chosen.exists():
            number += 1
            chosen = original.with_name(f"{name}-{number}{original.suffix}")
        diverted = self._diverted.setdefault(path, [])
        if len(diverted) > 1:
            with contextlib.suppress(OSError):
                Path(diverted.pop()).unlink()
        diverted.append(str(chosen))
        return str(chosen)

    def saved(self, path: str, *, bad: bool, is_destination: bool) -> None:
        """Remember what was saved; `is_destination`: it was saved to memory and is still to be moved to the path."""
        paths = self._bad_destinations if is_destination else self._bad_files
        paths.add(path) if bad else paths.discard(path)

    def reinstall(self, taps: Taps, shield: Shield) -> None:
        """Wrap the rename functions again after all wrappers were removed."""
        if self._watches_renames:
            self._watches_renames = False
            self.watch_renames(taps, shield)

    def watch_renames(self, taps: Taps, shield: Shield) -> None:
        """Wrap `os.replace` and `os.rename`: many scripts save to a temporary name and rename onto the good file."""
        if self._watches_renames:
            return
        self._watches_renames = True
        divert_rename = shield(self._divert_rename)

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def rename(src: Any, dst: Any, **dir_fds: Any) -> Any:
                diverted = divert_rename(src, dst) if not dir_fds else None
                if diverted == "":
                    return Path(src).unlink()
                return original(src, dst if diverted is None else diverted, **dir_fds)

            return rename

        taps.wrap("os.replace", wrap)
        taps.wrap("os.rename", wrap)

    def _divert_rename(self, src: Any, dst: Any) -> str | None:
        """Where to move a file with NaN instead; "" for nowhere, while nothing may be replaced; None for every other file."""
        if isinstance(src, int) or isinstance(dst, int):
            return None
        source, destination = (whole_path(os.fsdecode(path)) for path in (src, dst))
        if source in self._unwanted or destination in self._unwanted:
            self._unwanted -= {source, destination}
            if Path(destination).exists():
                self.num_skipped += 1
                return ""
            self._unwanted.add(destination)
            return None
        if destination in self._best:
            self.before_overwrite(destination)
        if source not in self._bad_files and destination not in self._bad_destinations:
            self._bad_files.discard(destination)
            return None
        self._bad_files.discard(source)
        self._bad_destinations.discard(destination)
        diverted = self.divert(destination)
        if diverted is None:
            self._bad_files.add(destination)
        else:
            self._log.row("diverted", path=destination, diverted_to=diverted, moved_from=source)
        return diverted

    def _is_good(self, path: str) -> bool:
        """Whether the path holds a file that must not be lost."""
        try:
            return Path(path).stat().st_size > 0 and path not in self._bad_files
        except OSError:
            return False
