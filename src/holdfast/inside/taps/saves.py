"""Other people's `torch.save`, and `save_file` of safetensors: what was saved where, and whether it was fit to be saved.

    torch.save(state, "last.pt")     a row in the journal: path, step, size, seconds
    … with NaN in it                 a finding; under `guard`, over a good file, saved beside it instead: see protected.py

Nothing is done before the script saves something. What torch is given, returns and raises stays as it is; a file that cannot be
looked at is saved like any other.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import get_worker_info

from holdfast.inside.gradients.non_finite import Bad, bad_tensors, is_state
from holdfast.inside.observers.checkpoint_log import CheckpointLog, SavedRows
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.shield import Shield
from holdfast.inside.taps.imports import when_imported
from holdfast.inside.taps.registry import Taps
from holdfast.signals.lineage import END, mark_of, whole_path
from holdfast.signals.pulse import SAVING

if TYPE_CHECKING:
    from holdfast.inside.guard.protected_checkpoints import Protected

CODE = "checkpoint-non-finite"
_NO_ROOM = 1 << 20  # bytes
_NAMED = 5  # tensors that a finding names
_TOLD_EACH = 3  # after so many of a path, only every doubling of their number is told


@dataclass(slots=True)
class Target:
    """Where a save goes: a path, a file that the script opened, or a buffer whose destination is known."""

    path: str
    kind: str  # path, file, buffer
    instead: str | None = None
    bad: list[Bad] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)


class Saves:
    """Watches the saves of this process."""

    def __init__(self, checkpoint_log: CheckpointLog) -> None:
        self.checkpoint_log = checkpoint_log
        self.rows = SavedRows(checkpoint_log.row)
        self._counts: dict[str, int] = {}
        self._protected: Protected | None = None
        self._taps: Taps | None = None
        self._shield: Shield | None = None
        self._listens = False

    def install(self, taps: Taps, shield: Shield) -> None:
        """Hang it into torch."""
        self._taps, self._shield = taps, shield
        if self._protected is not None:
            self._protected.watch_again(taps, shield)
        taps.wrap("torch.save", self._save)
        taps.wrap("torch.serialization.save", lambda _: torch.save)  # the same one: it is pickled by this name
        if (module := sys.modules.get("safetensors.torch")) is not None:
            self._watch_safetensors(module)
        elif not self._listens:
            self._listens = True
            when_imported({"safetensors.torch": self._watch_safetensors})

    def _watch_safetensors(self, _module: ModuleType) -> None:
        """Before others take the function by its name."""

        def watch(original: Callable[..., Any]) -> Callable[..., Any]:
            save = self._save(original, callers=3)

            def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
                return save(tensors, filename, *args, **kwargs)

            return save_file

        if self._taps is not None:
            self._taps.wrap("safetensors.torch.save_file", watch)

    def _save(self, original: Callable[..., Any], callers: int = 2) -> Callable[..., Any]:
        begins, ended, failed = (self._shield_of(entry) for entry in (self.begins, self.ended, self.failed))

        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            before = HEARTBEAT.enter(SAVING)
            try:
                return watched(obj, f, *args, **kwargs)
            finally:
                HEARTBEAT.leave(before)

        def watched(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            target = begins(obj, f, sys._getframe(callers))
            if target is None:
                return original(obj, f, *args, **kwargs)
            begun = time.perf_counter()
            try:
                result = original(obj, f if target.instead is None else target.instead, *args, **kwargs)
            except Exception as error:
                failed(target, error)
                raise
            ended(target, f, time.perf_counter() - begun)
            return result

        return save

    def _shield_of(self, entry: Callable[..., Any]) -> Callable[..., Any]:
        assert self._shield is not None
        return self._shield(entry)

    def begins(self, thing: Any, file: Any, caller: Any) -> Target | None:
        """Something is about to be saved: where to, and whether it should be. None if it is no checkpoint."""
        if not self._is_state(thing) or str(caller.f_globals.get("__name__", "")).startswith("holdfast."):
            return None
        target = _target(file, caller)
        if target is None or get_worker_info() is not None:
            return None
        target.bad = bad_tensors(thing)
        if target.bad and self.checkpoint_log.guards(CODE):
            self._divert(target)
        return target

    def ended(self, target: Target, file: Any, seconds: float) -> None:
        """It was saved."""
        path = target.instead or target.path
        facts = {**_facts_of(target.kind, path, file), "seconds": round(seconds, 4), "step": self.checkpoint_log.step()}
        if target.bad:
            self._tell_bad(target, facts)
        else:
            self.rows.add(path, facts)
        if self._protected is not None:
            self._protected.saved(path, bad=bool(target.bad), by_name=target.kind == "buffer")

    def failed(self, target: Target, error: Exception) -> None:
        """It could not be saved; the script gets the error."""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) if isinstance(error, OSError) else _is_full(target.path)
        evidence = {"path": target.path, "error": f"{type(error).__name__}: {error}"}
        self.checkpoint_log.finding("disk-full" if full else "checkpoint-not-saved", "warning", evidence)

    def after_fork(self) -> None:
        """In a forked child: what the parent has not told yet is the parent's."""
        self.rows = SavedRows(self.checkpoint_log.row)

    def _is_state(self, thing: Any) -> bool:
        """Whether it looks like a state, or holds the very weights that are trained."""
        if is_state(thing):
            return True
        training = self.checkpoint_log.newest() if isinstance(thing, dict) else None
        return training is not None and training.trains(dict.values(thing))

    def _divert(self, target: Target) -> None:
        if self._protected is None:
            from holdfast.inside.guard.protected_checkpoints import Protected

            self._protected = Protected(self.checkpoint_log)
        if target.kind == "path":
            target.instead = self._protected.other_name(target.path)
        elif target.kind == "file" and Path(target.path).exists():
            target.notes["note"] = "the script had opened the file itself: what was in it is gone"
        if target.instead is None and self._taps is not None and self._shield is not None:
            self._protected.watch_renames(self._taps, self._shield)  # it may be moved over a good file next

    def _tell_bad(self, target: Target, facts: dict[str, Any]) -> None:
        count = self._counts[target.path] = self._counts.get(target.path, 0) + 1
        if count > _TOLD_EACH and count & (count - 1):
            return
        row = {name: value for name, value in facts.items() if value is not None}
        where = {"path": target.path} if target.instead is None else {"path": target.path, "diverted_to": target.instead}
        self.checkpoint_log.row("saved" if target.instead is None else "diverted", non_finite=len(target.bad), **where, **row)
        evidence: dict[str, Any] = {
            **where,
            "bad_tensors": len(target.bad),
            "tensors": [bad.as_row() for bad in target.bad[:_NAMED]],
            **target.notes,
        }
        if count > 1:
            evidence["so_far"] = count
        self.checkpoint_log.finding(CODE, "critical", evidence)


def _target(file: Any, caller: Any) -> Target | None:
    """Where a save goes, if that has a name."""
    if isinstance(file, (str, os.PathLike)):
        return Target(whole_path(file), "path")
    if isinstance(file, io.BytesIO):  # Lightning saves into memory and writes that out in one go
        aim = caller.f_locals.get("filepath") if caller.f_code.co_name == "_atomic_save" else None
        local = isinstance(aim, (str, os.PathLike)) and "://" not in str(aim)
        return Target(whole_path(aim), "buffer") if local else None  # type: ignore[arg-type]
    name = getattr(file, "name", None)
    return Target(whole_path(name), "file") if isinstance(name, str) and name else None


def _is_full(path: str) -> bool:
    """Whether there is no room where a save failed: torch's own writer does not say why it could not write."""
    try:
        disk = os.statvfs(Path(path).parent)
    except (OSError, AttributeError):  # not offered by this system
        return False
    return disk.f_bavail * disk.f_frsize < _NO_ROOM or (disk.f_files > 0 and disk.f_favail == 0)


def _facts_of(kind: str, path: str, file: Any) -> dict[str, Any]:
    """The size of what was saved, and what it is known again by."""
    if kind == "buffer":
        with file.getbuffer() as content:
            return {"size": len(content), "mark": f"{len(content)}-{zlib.crc32(content[-END:]):08x}"}
    mark = mark_of(path) if kind == "path" else None  # a file that is open may not be flushed yet
    return {"size": int(mark.split("-")[0]), "mark": mark} if mark is not None else {}
