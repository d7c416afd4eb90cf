"""The folder of a run: `run.json`, the journal, and one folder of tables for each rank.

runs/<name>/
  run.json         what was started, where, with which versions
  train.log        what the command printed
  journal.jsonl    findings, actions, changes
  rank-0/          the tables of rank 0; `rank-0.1` is the next training of that rank: a second one in the same
                   process, a child process that trains, or a restart
  printed/         for each rank, metrics that were read from what its script printed
  host/            what was seen from outside: processes, GPUs
  starting/        pulses of processes that have not made a step yet; later `pulse` is in the rank's folder
  faults/          stacks of processes that crashed
  nodes/           what several machines that work on one run tell each other; `train-1.log` is the output of node 1
  sent/            how far the run was sent to each tracker
  post-mortem.txt  how it ended, if badly; and `.json`
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import NewerFormat, NotARunFolder
from holdfast.signals.journal import Journal

FORMAT = 1
_RECORDING = re.compile(r"rank-(\d+)(?:\.(\d+))?$")


@dataclass(frozen=True, slots=True, order=True)
class Recording:
    """The tables of one training of one rank."""

    rank: int
    part: int
    path: Path

    @property
    def name(self) -> str:
        """`rank-0`, or `rank-0.1` for the second training of that rank."""
        return self.path.name

    @property
    def place(self) -> dict[str, str]:
        """What a row of the journal says of it."""
        return {"recording": self.name}

    def info(self) -> dict[str, Any]:
        """Process id, host and command line of the process that trains here; empty if they cannot be read."""
        return _read_json(self.path / "process.json")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run on disk; make it with `create`, find it again with `open`."""

    path: Path

    @classmethod
    def create(cls, parent: Path, name: str, **info: Any) -> RunFolder:
        """Make a folder for a new run; a name that is taken gets the next free number behind it."""
        parent.mkdir(parents=True, exist_ok=True)
        path = _make_free(parent, name)
        run = cls(path.resolve())
        try:
            run.write_info({"format": FORMAT, "name": path.name, **info})
        except OSError:  # a full disk still makes folders: leave no empty one behind
            shutil.rmtree(run.path, ignore_errors=True)
            raise
        _point_latest_to(run.path)
        return run

    @classmethod
    def join(cls, parent: Path, name: str, **info: Any) -> RunFolder:
        """Make the folder, or use the one that another rank of the same run has just made."""
        path = parent / name
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path.resolve())
        if not (path / "run.json").exists():
            run.write_info({"format": FORMAT, "name": name, **info})
            _point_latest_to(run.path)
        return run

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run folder, and refuse in words what is none."""
        info = _read_json(path / "run.json")
        if not info:
            raise NotARunFolder(
                f"{path} is not a run folder: it holds no readable run.json.",
                fix="name a folder such as runs/<name>; `holdfast ps --all` lists the runs here",
            )
        written = info.get("format")
        if not isinstance(written, int) or written > FORMAT:
            raise NewerFormat(
                f"{path} was written by a newer Holdfast (format {written}; this one reads up to {FORMAT}).",
                fix="pip install --upgrade holdfast",
            )
        return cls(path.resolve())

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return self.path.name

    @property
    def target(self) -> str:
        """How a command that is typed here names the run: its name in `./runs` unless a file has that name, else its path."""
        with contextlib.suppress(OSError, ValueError):  # not below this folder, or this folder is gone
            here = Path.cwd().resolve()
            if self.path.parent == (here / "runs").resolve() and not (here / self.name).exists():
                return shlex.quote(self.name)
            return shlex.quote(str(self.path.relative_to(here)))
        return shlex.quote(str(self.path))

    @property
    def journal(self) -> Journal:
        """Findings, actions and changes of this run."""
        return Journal(self.path / "journal.jsonl")

    def info(self) -> dict[str, Any]:
        """What `run.json` says now."""
        return _read_json(self.path / "run.json")

    def write_info(self, info: dict[str, Any]) -> None:
        """Replace `run.json` in one move, so that a reader never sees half of it."""
        replace_text(self.path / "run.json", json.dumps(info, indent=1, ensure_ascii=False, default=str) + "\n")

    def update_info(self, **changes: Any) -> None:
        """Change some fields of `run.json`."""
        self.write_info({**self.info(), **changes})

    def recordings(self) -> list[Recording]:
        """All trainings recorded here, by rank and order: the same list as long as nothing changes, not to be changed."""
        return _listings.setdefault(self.path, _Listing(self.path)).recordings()

    def claim(self, rank: int) -> Recording:
        """Make the folder of the next training of this rank; two processes never get the same one."""
        part = 0
        while True:
            path = self.path / (f"rank-{rank}" if part == 0 else f"rank-{rank}.{part}")
            try:
                path.mkdir()
            except FileExistsError:
                part += 1
                continue
            return Recording(rank, part, path)


def printed_folder(recording: Path) -> Path:
    """Beside the folder of a recording: its metrics that were read from the output, by another process than its own."""
    return recording.parent / "printed" / recording.name


def replace_text(target: Path, text: str) -> None:
    """Write a file in one move. Bytes of a command line or a path that are no text become `?`.

    The spare file names its machine: processes on two of them that share the folder may have the same number.
    """
    spare = target.with_name(f".{target.name}.{socket.gethostname()}-{os.getpid()}")
    spare.write_bytes(text.encode(errors="replace"))
    spare.replace(target)


class _Listing:
    """The recordings of a folder, listed again when its modification time changes: thousands, asked several times a second.

    A folder that changes twice within one tick of its clock has the same time twice, so the last listing is made well after that.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._changed, self._seen = path, -1, 0.0
        self._settled = False
        self._recordings: list[Recording] = []

    def recordings(self) -> list[Recording]:
        folder, now = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC), time.monotonic()  # NFS asks its server for the time then
        try:
            changed = os.fstat(folder).st_mtime_ns
        finally:
            os.close(folder)
        if changed != self._changed:
            self._changed, self._seen, self._settled = changed, now, False
        if not self._settled:
            self._settled = now - self._seen > _SETTLED_SECONDS
            with os.scandir(self._path) as entries:
                there = [(int(match[1]), int(match[2] or 0), match[0]) for entry in entries if (match := _matches(entry))]
            self._recordings = [Recording(rank, part, self._path / name) for rank, part, name in sorted(there)]
        return self._recordings


_SETTLED_SECONDS = 2.0
_listings: dict[Path, _Listing] = {}


def _matches(entry: os.DirEntry[str]) -> re.Match[str] | None:
    match = _RECORDING.match(entry.name)
    return match if match and entry.is_dir() else None


def _make_free(parent: Path, name: str) -> Path:
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            continue
        return path


def _point_latest_to(path: Path) -> None:
    """Make `latest` beside the run point to it; a file system without links goes without."""
    spare = path.parent / f".latest.{os.getpid()}"
    with contextlib.suppress(OSError):
        spare.symlink_to(path.name)
        spare.replace(path.parent / "latest")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
