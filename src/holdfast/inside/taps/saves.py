"""Watch `torch.save` and safetensors' `save_file`: what was saved where, and whether it holds NaN or Inf.

    torch.save(state, "last.pt")     a row in the journal: path, step, size, seconds
    … with NaN in it                 a finding; under `guard` a good file is not overwritten: see protected_checkpoints.py

Arguments, results and exceptions of the save stay as they are. Nothing runs before the script saves something.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
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
    from holdfast.inside.guard.protected_checkpoints import ProtectedCheckpoints

CODE = "checkpoint-non-finite"
_DISK_FULL_BELOW = 1 << 20  # free bytes
_TENSORS_IN_FINDING = 5
_REPORT_FIRST = 3  # findings per path; after that one at every doubling


@dataclass(slots=True)
class SaveTarget:
    """Where a save goes: a path, a file that the script opened, or a buffer with a known destination."""

    path: str
    kind: str  # path, file, buffer
    diverted_to: str | None = None
    is_skipped: bool = False
    bad: list[Bad] = field(default_factory=list)
    note: str = ""


class Saves:
    """Watches the saves of this process."""

    def __init__(self, checkpoint_log: CheckpointLog) -> None:
        self.checkpoint_log = checkpoint_log
        self.rows = SavedRows(checkpoint_log.row)
        self._bad_saves: dict[str, int] = {}  # by path
        self._protected: ProtectedCheckpoints | None = None
        self.fast_forwarding: Callable[[], bool] = lambda: False
        self._taps: Taps | None = None
        self._shield: Shield | None = None
        self._awaits_safetensors = False

    def install(self, taps: Taps, shield: Shield) -> None:
        """Wrap the save functions."""
        self._taps, self._shield = taps, shield
        if self._protected is not None:
            self._protected.reinstall(taps, shield)
        taps.wrap("torch.save", self._wrap_save)
        taps.wrap("torch.serialization.save", lambda _: torch.save)  # one object: pickle finds it under this name
        if (module := sys.modules.get("safetensors.torch")) is not None:
            self._wrap_safetensors(module)
        elif not self._awaits_safetensors:  # wrapped on import, before others import the function by name
            self._awaits_safetensors = True
            when_imported({"safetensors.torch": self._wrap_safetensors})

    def _wrap_safetensors(self, _module: ModuleType) -> None:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            save = self._wrap_save(original, frames_up=2)

            def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
                return save(tensors, filename, *args, **kwargs)

            return save_file

        if self._taps is not None:
            self._taps.wrap("safetensors.torch.save_file", wrap)

    def _wrap_save(self, original: Callable[..., Any], frames_up: int = 1) -> Callable[..., Any]:
        assert self._shield is not None
        before, after = self._shield(self.before_save), self._shield(self.after_save)
        failed = self._shield(self.save_failed)

        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            with HEARTBEAT.during(SAVING):
                target = before(obj, f, sys._getframe(frames_up))
                if target is None:
                    return original(obj, f, *args, **kwargs)
                if target.is_skipped:
                    return None
                start = time.perf_counter()
                try:
                    result = original(obj, target.diverted_to or f, *args, **kwargs)
                except Exception as error:
                    failed(target, error)
                    raise
                after(target, f, time.perf_counter() - start)
                return result

        return save

    def before_save(self, obj: Any, file: Any, caller: FrameType) -> SaveTarget | None:
        """Look at an object before it is saved; None unless it is a checkpoint that goes to a named file."""
        if not self._is_checkpoint(obj) or str(caller.f_globals.get("__name__", "")).startswith("holdfast."):
            return None
        target = _target_of(file, caller)
        if target is None or get_worker_info() is not None:
            return None
        if self._protected is not None and self.fast_forwarding():
            target.is_skipped = self._protected.is_skipped(target.path, target.kind)
            return target
        target.bad = bad_tensors(obj)
        if target.bad and self.checkpoint_log.guards(CODE):
            self._divert(target)
        elif self._protected is not None and target.kind == "path":
            self._protected.before_overwrite(target.path)
        return target

    def after_save(self, target: SaveTarget, file: Any, seconds: float) -> None:
        """Log a save that succeeded."""
        path = target.diverted_to or target.path
        facts = {**_size_and_mark(target.kind, path, file), "seconds": round(seconds, 4), "step": self.checkpoint_log.step()}
        if target.bad:
            self._report_bad(target, facts)
        else:
            self.rows.add(path, facts)
        if self._protected is not None:
            self._protected.saved(path, bad=bool(target.bad), is_destination=target.kind == "buffer")

    def save_failed(self, target: SaveTarget, error: Exception) -> None:
        """Log a save that raised; the script gets the error."""
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT) if isinstance(error, OSError) else _is_disk_full(target.path)
        evidence = {"path": target.path, "error": f"{type(error).__name__}: {error}"}
        self.checkpoint_log.finding("disk-full" if is_full else "checkpoint-not-saved", "warning", evidence)

    def after_fork(self) -> None:
        """In a forked child: the pending rows belong to the parent."""
        self.rows = SavedRows(self.checkpoint_log.row)

    def _is_checkpoint(self, obj: Any) -> bool:
        """Whether it looks like a state dict, or holds parameters that are being trained."""
        if is_state(obj):
            return True
        training = self.checkpoint_log.newest() if isinstance(obj, dict) else None
        return training is not None and training.trains(dict.values(obj))

    def protect_earlier(self, folders: Iterable[Path], attempt: int) -> ProtectedCheckpoints:
        """Keep a restarted script that is fast-forwarded from replacing its earlier checkpoints."""
        assert self._taps is not None and self._shield is not None
        protected = self._protect()
        protected.set_best_aside(folders, attempt)
        protected.watch_renames(self._taps, self._shield)
        return protected

    def _protect(self) -> ProtectedCheckpoints:
        if self._protected is None:
            from holdfast.inside.guard.protected_checkpoints import ProtectedCheckpoints

            self._protected = ProtectedCheckpoints(self.checkpoint_log)
        return self._protected

    def _divert(self, target: SaveTarget) -> None:
        assert self._taps is not None and self._shield is not None
        protected = self._protect()
        if target.kind == "path":
            target.diverted_to = protected.divert(target.path)
        elif target.kind == "file" and Path(target.path).exists():
            target.note = "the script opened the file itself, which erased its previous contents"
        if target.diverted_to is None:
            protected.watch_renames(self._taps, self._shield)  # it may be renamed onto a good file next

    def _report_bad(self, target: SaveTarget, facts: dict[str, Any]) -> None:
        count = self._bad_saves[target.path] = self._bad_saves.get(target.path, 0) + 1
        if count > _REPORT_FIRST and count & (count - 1):
            return
        is_diverted = target.diverted_to is not None
        paths = {"path": target.path} | ({"diverted_to": target.diverted_to} if is_diverted else {})
        facts = {name: value for name, value in facts.items() if value is not None}
        self.checkpoint_log.row("diverted" if is_diverted else "saved", non_finite=len(target.bad), **paths, **facts)
        tensors = [bad.as_row() for bad in target.bad[:_TENSORS_IN_FINDING]]
        evidence: dict[str, Any] = {**paths, "bad_tensors": len(target.bad), "tensors": tensors}
        if target.note:
            evidence["note"] = target.note
        if count > 1:
            evidence["so_far"] = count
        self.checkpoint_log.finding(CODE, "critical", evidence)


def _target_of(file: Any, caller: FrameType) -> SaveTarget | None:
    """Where a save goes, if that has a name."""
    if isinstance(file, (str, os.PathLike)):
        return SaveTarget(whole_path(file), "path")
    if isinstance(file, io.BytesIO):
        path = _destination(caller)
        is_local = isinstance(path, (str, os.PathLike)) and "://" not in str(path)
        return SaveTarget(whole_path(path), "buffer") if is_local else None
    name = getattr(file, "name", None)
    return SaveTarget(whole_path(name), "file") if isinstance(name, str) and name else None


def _destination(caller: FrameType) -> Any:
    """Where Lightning and Ultralytics write the buffer that they save to first."""
    if caller.f_code.co_name == "torch_save" and caller.f_back is not None:  # Ultralytics wraps `torch.save`
        caller = caller.f_back
    if caller.f_code.co_name == "_atomic_save":
        return caller.f_locals.get("filepath")
    return getattr(caller.f_locals.get("self"), "last", None) if caller.f_code.co_name == "save_model" else None


def _is_disk_full(path: str) -> bool:
    """Whether the disk is full where a save failed: torch's own writer does not say why it failed."""
    try:
        disk = os.statvfs(Path(path).parent)
    except (OSError, AttributeError):  # Windows has no statvfs
        return False
    return disk.f_bavail * disk.f_frsize < _DISK_FULL_BELOW or (disk.f_files > 0 and disk.f_favail == 0)


def _size_and_mark(kind: str, path: str, file: Any) -> dict[str, Any]:
    """The size of what was saved, and the mark that identifies its content."""
    if kind == "buffer":
        with file.getbuffer() as content:
            return {"size": len(content), "mark": f"{len(content)}-{zlib.crc32(content[-END:]):08x}"}
    mark = mark_of(path) if kind == "path" else None  # an open file may not be flushed yet
    return {"size": int(mark.split("-")[0]), "mark": mark} if mark is not None else {}
