"""How each rank of a run stands, followed from outside: its pulse, its steps, the state of its process."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.detectors.hang import STOPPED, Standing, awake
from holdfast.probe.alive import lives
from holdfast.probe.rows import last_rows
from holdfast.signals.pulse import Pulse, read_pulse, starting
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.view import measured

_RECENT_STEPS = 200
_STEPS_EVERY = 2.0  # seconds between two looks at the table of steps


@dataclass(slots=True)
class _Followed:
    """One process that trains, and when something was last seen of it."""

    pid: int
    rank: int
    recording: Recording | None
    seen: tuple[object, ...] = ()
    silent: float = 0.0
    stopped: float = 0.0  # seconds in which it was stopped since it last moved
    pulse: Pulse | None = None
    state: str = "S"
    longest: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    looked: float = field(default=-10.0)


class Progress:
    """Follows the processes of a run. `look` is called every `tick` seconds."""

    def __init__(self, run: RunFolder, tick: float) -> None:
        self._run, self._tick = run, tick
        self._followed: dict[int, _Followed] = {}
        self._infos: dict[Path, dict[str, Any]] = {}  # who records where, once it has said so
        self._gone: set[int] = set()
        self._listed: list[Recording] = []
        self._own: list[Recording] = []
        self._looked = time.monotonic()

    def look(self) -> list[Standing]:
        """How the ranks stand now; those that have ended are skipped."""
        now = time.monotonic()
        passed, self._looked = awake(now - self._looked, self._tick), now
        self._find()
        return [self._standing(followed, passed, now) for followed in list(self._followed.values()) if self._lives(followed)]

    def pid_of(self, rank: int) -> int | None:
        """The process of a rank."""
        return next((followed.pid for followed in self._followed.values() if followed.rank == rank), None)

    @property
    def by_rank(self) -> dict[int, int]:
        """The processes that train, by rank."""
        return {followed.rank: followed.pid for followed in self._followed.values()}

    @property
    def pids(self) -> list[int]:
        """The processes that train."""
        return list(self._followed)

    def stopped_for(self) -> tuple[int, float] | None:
        """The process that has been stopped for longest, and for how many seconds."""
        stopped = [(followed.pid, followed.stopped) for followed in self._followed.values() if followed.stopped > 0]
        return max(stopped, key=lambda followed: followed[1], default=None)

    def begin_again(self) -> None:
        """Another attempt begins: forget the processes of the one before."""
        self._gone |= set(self._followed)
        self._followed.clear()

    def _find(self) -> None:
        newest: dict[int, Recording] = {}
        with contextlib.suppress(OSError):
            for recording in self._here():
                if (info := self._who(recording)) is not None:
                    newest[info["pid"]] = recording
        for pid, recording in newest.items():
            if pid in self._gone:
                continue
            followed = self._followed.get(pid)
            if followed is None or followed.recording != recording:
                self._followed[pid] = _Followed(pid, recording.rank, recording)
        begun = {pulse.pid: pulse for pulse in starting(self._run)}
        for pid, followed in list(self._followed.items()):
            if followed.recording is None and pid not in begun:  # it trains now, and its recording is another machine's
                self._followed.pop(pid, None)
        for pid, pulse in begun.items():
            if pid not in self._followed and pid not in self._gone:
                self._followed[pid] = _Followed(pid, 0, None, pulse=pulse)

    def _here(self) -> list[Recording]:
        """The recordings of this machine, and those of which it is not known yet: a few of thousands."""
        listed = self._run.recordings()
        if listed is not self._listed:
            self._listed, self._own = listed, listed
        host = socket.gethostname()
        self._own = [
            recording for recording in self._own if (info := self._who(recording)) is None or info.get("host") in (None, host)
        ]
        return self._own

    def _who(self, recording: Recording) -> dict[str, Any] | None:
        """Which process records here; None as long as it has not said so: its folder is there a moment before that."""
        cached = self._infos.get(recording.path)
        if cached is None and isinstance((info := recording.info()).get("pid"), int):
            cached = self._infos[recording.path] = info
        return cached

    def _lives(self, followed: _Followed) -> bool:
        info = self._who(followed.recording) if followed.recording is not None else None
        if lives(info or {"pid": followed.pid}):
            return True
        self._followed.pop(followed.pid, None)
        self._gone.add(followed.pid)
        return False

    def _standing(self, followed: _Followed, passed: float, now: float) -> Standing:
        self._read(followed, now)
        seen: tuple[object, ...] = (followed.pulse,) if followed.pulse is not None else (followed.last_step,)
        followed.state = process_state(followed.pid)
        if seen != followed.seen:
            followed.seen, followed.silent, followed.stopped = seen, 0.0, 0.0
        elif followed.state in STOPPED:
            followed.stopped += passed
        else:
            followed.silent += passed
        pulse = followed.pulse
        done = pulse.steps if pulse is not None else followed.last_step
        return Standing(
            rank=followed.rank,
            silent=followed.silent,
            phase=pulse.phase if pulse is not None else "training",
            step=done - 1 if done else followed.last_step,
            steps=0 if done is None else done - (followed.first_step or 0),
            longest_step=followed.longest,
            longest_evaluation=pulse.longest_evaluation if pulse is not None else None,
            state=followed.state,
        )

    def _read(self, followed: _Followed, now: float) -> None:
        if followed.recording is None:
            followed.pulse = next((pulse for pulse in starting(self._run) if pulse.pid == followed.pid), followed.pulse)
            return
        followed.pulse = read_pulse(followed.recording) or followed.pulse
        if now - followed.looked < _STEPS_EVERY:
            return
        followed.looked = now
        rows = last_rows(followed.recording.path, "steps", ("step", "step_seconds"), _RECENT_STEPS)
        steps, seconds = rows["step"], rows["step_seconds"]
        if len(steps):
            followed.last_step = int(steps[-1])
            followed.first_step = int(steps[0]) if followed.first_step is None else followed.first_step
        valid = seconds[measured(seconds)]
        followed.longest = float(np.max(valid)) if len(valid) else followed.longest


def process_state(pid: int) -> str:
    """The letter by which the system says what a process does: R, S, D (waits for a disk), T (stopped), Z; X if it is gone."""
    with contextlib.suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    import psutil

    letters = {psutil.STATUS_STOPPED: "T", psutil.STATUS_DISK_SLEEP: "D", psutil.STATUS_ZOMBIE: "Z"}
    try:
        return letters.get(psutil.Process(pid).status(), "S")
    except psutil.Error:
        return "X"
