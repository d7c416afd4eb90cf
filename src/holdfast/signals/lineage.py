"""From which run a checkpoint comes: each run's journal says what it saved, and a file is known again by how it ends.

A checkpoint is renamed, copied, and saved again under the same name. The end of a file that `torch.save` wrote holds the
checksums of everything in it, so that its size and a checksum of its end tell it from all others.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

END = 1 << 16  # bytes
_RUNS_AT_MOST = 256
_JOURNAL_AT_MOST = 64 << 20
_CHAIN_AT_MOST = 32


@dataclass(frozen=True, slots=True)
class Save:
    """A save that a journal tells of: the run, its recording (`rank-0`), how many steps came before it, and when it was."""

    run: Path
    recording: str
    step: int | None
    time: float
    exact: bool = True  # the file is the one that was saved then; else one of that name, and `time` is the file's own
    own_count: bool = False  # the step is the script's own count, not that of the run's tables


def whole_path(path: str | os.PathLike[str]) -> str:
    """The path from the root, as the journal has it; links stay links."""
    return os.path.abspath(os.fspath(path))  # noqa: PTH100 - `Path.absolute` leaves ".." in


def mark_of(path: str | os.PathLike[str]) -> str | None:
    """What a file is known again by, its size in front; None if it cannot be read, or is none (a pipe would be waited for)."""
    try:
        if not Path(path).is_file():
            return None
        with Path(path).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - END))
            return f"{size}-{zlib.crc32(file.read(END)):08x}"
    except OSError:
        return None


def same_script(first_info: Mapping[str, Any], second_info: Mapping[str, Any]) -> bool:
    """Whether two runs, by what their `run.json` says, ran the same file: at the same place, or with the same content."""
    first, second = script_of(first_info), script_of(second_info)
    if first is None or second is None:
        return False
    contents = first_info.get("script"), second_info.get("script")
    return first == second or (contents[0] is not None and contents[0] == contents[1])


def script_of(info: Mapping[str, Any]) -> str | None:
    """The path of the script that a run was started with, or its module and folder; None if neither shows, as in a notebook."""
    command, folder = [str(word) for word in info.get("command") or ()], str(info.get("cwd") or "")
    place = script_place(command)
    if place is None or Path(command[place]).name.startswith(("ipykernel", "colab_kernel")):
        return None
    word = command[place]
    return whole_path(Path(folder) / word) if word.endswith((".py", ".sh")) else f"{word} in {folder}"


def script_place(command: Sequence[str]) -> int | None:
    """Where in a command its script or module stands."""
    for place, (before, word) in enumerate(zip(("", *command), command, strict=False)):
        if word.endswith((".py", ".sh")) and not word.startswith("-") and before != "-c":  # there it is a line of shell
            return place
        if before in ("-m", "--module") and not word.startswith(("torch.distributed.", "accelerate.")):
            return place
    return None


def find_save(run: Path, path: str) -> Save | None:
    """The newest save that made this file: in the journal of this run or of one beside it, or by its manifest."""
    ours = _from_manifest(Path(path))
    if ours is not None:
        return ours
    mark, real = mark_of(path), str(Path(path).resolve())
    best: tuple[int, float, Save] | None = None
    for folder in _neighbours(run):
        for row in _saves(folder):
            fits = _fits(row, mark, path, real)
            at = row.get("when", row.get("time"))
            if not fits or not isinstance(at, (int, float)) or (best is not None and best[:2] >= (fits, at)):
                continue
            step = row.get("step")
            save = Save(folder, str(row.get("recording") or "rank-0"), step if isinstance(step, int) else None, at)
            best = (fits, at, save)
    if best is None:
        return None
    return best[2] if best[0] > 1 else replace(best[2], step=None, time=_modified(path), exact=False)


def whole_steps(save: Save) -> int | None:
    """How many steps of the training came before a save, including those of the runs that it resumed from."""
    if save.step is None or save.own_count:
        return save.step
    steps_before = 0
    for row in _rows(save.run):
        if row.get("event") == "resumed" and row.get("recording") == save.recording and isinstance(row.get("at"), int):
            steps_before = int(row["at"]) - int(row.get("step") or 0)  # a run that counts on from there has them in its own count
    return steps_before + save.step


def ancestors(save: Save) -> Iterator[Save]:
    """The save, then the one that its run resumed from, and so on: the last belongs to the run that started from scratch."""
    seen: set[tuple[Path, str]] = set()
    current: Save | None = save
    while current is not None and (current.run, current.recording) not in seen and len(seen) < _CHAIN_AT_MOST:
        seen.add((current.run, current.recording))
        yield current
        rows = [row for row in _rows(current.run) if row.get("event") == "resumed" and row.get("recording") == current.recording]
        current = save_in(rows[-1]) if rows else None


def save_in(row: Mapping[str, Any]) -> Save | None:
    """The save that a `resumed` row names as its origin."""
    before = row.get("before")
    if not isinstance(before, dict) or not before.get("run"):
        return None
    step, at = before.get("step"), before.get("time")
    step_of_save = step if isinstance(step, int) else None
    when = float(at) if isinstance(at, (int, float)) else 0.0
    return Save(
        Path(str(before["run"])), str(before.get("recording") or "rank-0"), step_of_save, when, bool(before.get("exact", True))
    )


def _modified(path: str) -> float:
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0


def _fits(row: Mapping[str, Any], mark: str | None, path: str, real: str) -> int:
    """2: the same file; 1: the same name, saved again since; 0: another."""
    recorded = row.get("mark")
    if mark is not None and recorded == mark:
        return 2
    same = row.get("path") in (path, real)
    return 0 if not same else 2 if recorded is None else 1


def _neighbours(run: Path) -> list[Path]:
    """This run and those beside it, the newest first."""
    by_time: list[tuple[float, Path]] = []
    try:
        folders = [path for path in run.parent.iterdir() if not path.is_symlink()]
    except OSError:
        return [run]
    for folder in folders:
        with contextlib.suppress(OSError):
            by_time.append(((folder / "journal.jsonl").stat().st_mtime, folder))
    return [path for _, path in sorted(by_time, reverse=True)[:_RUNS_AT_MOST]]


def _saves(run: Path) -> Iterator[Mapping[str, Any]]:
    return (row for row in _rows(run) if row.get("event") in ("saved", "diverted"))


def _rows(run: Path) -> Iterator[Mapping[str, Any]]:
    """The rows about checkpoints in a journal."""
    try:
        with (run / "journal.jsonl").open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _JOURNAL_AT_MOST))
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines:
        if b'"checkpoint"' not in line:
            continue
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("kind") == "checkpoint":
            yield row


def _from_manifest(path: Path) -> Save | None:
    """The run that a checkpoint of Holdfast's own names."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        run, step = Path(manifest["run"]), int(manifest["step"])
        if not run.is_dir():
            return None
        return Save(run, f"rank-{int(manifest.get('rank') or 0)}", step, float(manifest.get("time") or 0.0), own_count=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
