"""A scheduler takes the machine back: SIGUSR1 before a time limit, SIGTERM before a preemption.

The signal itself does nothing in the training. The supervisor queues a `stop` that saves first, for a step soon to come, the same
on every rank and node; the ranks save between two steps, and `holdfast run` exits with 75: start the same command again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from holdfast.errors import UsageError
from holdfast.signals.action_queue import post
from holdfast.signals.actions import Action
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.begun import trainings

AGAIN = 75  # EX_TEMPFAIL of sysexits.h: not a failure, start it again
SIGNALS = frozenset({signal.SIGUSR1, signal.SIGTERM})
NODE_VARIABLES = ("SLURM_NODEID", "SKYPILOT_NODE_RANK", "DSTACK_NODE_RANK", "PET_NODE_RANK", "NODE_RANK")
_PREEMPTED = "preempted"
_LOOK_SECONDS = 0.2
_RECENT_STEPS = 50
_LAST_RANK_SECONDS = 600.0  # for the rank that writes; the scheduler usually kills all of them earlier


def node_of(environment: Mapping[str, str]) -> int:
    """The number of this node, as the launcher says; the first one is 0."""
    node = next((text for name in NODE_VARIABLES if (text := environment.get(name, "")).isdecimal()), None)
    if node is None:
        names = ", ".join(NODE_VARIABLES[:-1])
        problem = f"--nodes needs the number of this node, and none of {names} and NODE_RANK is set."
        raise UsageError(problem, fix="export NODE_RANK=0 on the first node, 1 on the second, …")
    return int(node)


class Preemption:
    """Takes the signals of a run that a scheduler starts again. Node 0 acts for all nodes; the others leave it to that one."""

    def __init__(self, run: RunFolder, trouble: Trouble, *, acts: bool) -> None:
        self._run, self._trouble, self._acts = run, trouble, acts
        self._ended, self._before_first_step = threading.Event(), False
        self._earlier, self._earlier_rows = set(trainings(run)), len(self._rows())  # not by time: clocks of nodes differ
        self.requested: signal.Signals | None = None

    def take(self, number: signal.Signals) -> bool:
        """Whether a signal is dealt with here; if not, it is the command's. A second one changes nothing."""
        if number not in SIGNALS:
            return False
        if self.requested is None:
            self.requested = number
            if self._acts:
                threading.Thread(target=self._work, name="holdfast-preemption", daemon=True).start()
        return True

    def exit_code(self, code: int) -> int:
        """The code to exit with once the command has ended with `code`: 75 if every rank has saved and stopped as asked."""
        self._ended.set()
        if self._before_first_step and code:  # SIGUSR1: the time limit is too short for a step, and would be again
            return AGAIN if self.requested == signal.SIGTERM else code
        if not self._stopped():
            return code
        deadline, ranks = time.monotonic() + _LAST_RANK_SECONDS, len(self._ranks())
        while len(self._stopped()) < ranks and time.monotonic() < deadline:  # a node that leaves early takes the others with it
            time.sleep(_LOOK_SECONDS)
        return AGAIN

    def _work(self) -> None:
        name = self.requested.name if self.requested else ""
        if not self._has_stepped():
            self._before_first_step = True
            _print(f"{name} before the first step: stopping, there is nothing to save")
            from holdfast.supervisor.ending import end_all

            end_all(self._run, None)
            return
        _print(f"{name}: saving a checkpoint between two steps, then stopping; Ctrl-C stops at once")
        while not self._ended.is_set():
            try:
                if self._queue_stop():
                    return
            except Exception as error:  # noqa: BLE001 - tried again until the scheduler ends it
                self._trouble.step_back("asking the training to save and stop", error)
            self._ended.wait(_LOOK_SECONDS)

    def _has_stepped(self) -> bool:
        from holdfast.probe.rows import last_rows

        return any(len(last_rows(rank.path, "steps", ("step",), 1)["step"]) for rank in self._ranks())

    def _queue_stop(self) -> bool:
        """Queue the action for all ranks; False before their first step."""
        from holdfast.probe.rows import last_rows
        from holdfast.recovery.judge import step_ahead

        ranks = self._ranks()
        tables = [last_rows(rank.path, "steps", ("step", "step_seconds"), _RECENT_STEPS) for rank in ranks]
        if not tables or not all(len(rows["step"]) for rows in tables):
            return False
        newest = max(int(rows["step"][-1]) for rows in tables)
        seconds = sorted(float(taken) for taken in tables[0]["step_seconds"])[len(tables[0]["step"]) // 2]
        is_here = {rank.info().get("host") for rank in ranks} == {socket.gethostname()}
        at = 0 if len(ranks) == 1 else step_ahead(newest, seconds, is_here=is_here)
        number = 1 + max((int(row.get("number") or 0) for row in self._run.journal if row.get("kind") == "action"), default=0)
        why = f"{_PREEMPTED} ({self.requested.name})" if self.requested else _PREEMPTED
        action = Action("stop", step=newest, because=_PREEMPTED, settings={"why": why, "save": True, "code": AGAIN})
        post(self._run.path, number, at, action, part=ranks[0].part)
        return True

    def _ranks(self) -> list[Recording]:
        """The ranks of the newest training that began after this start."""
        new = [training for training in trainings(self._run) if training not in self._earlier]
        newest = max((recording.part for recording in new), default=0)
        return [recording for recording in new if recording.part == newest]

    def _rows(self) -> list[dict[str, Any]]:
        rows = (row for row in self._run.journal if row.get("kind") == "action" and row.get("because") == _PREEMPTED)
        return [row for row in rows if row.get("state") == "done"]

    def _stopped(self) -> set[Any]:
        """The ranks that have saved and stopped because of this."""
        return {row.get("rank") for row in self._rows()[self._earlier_rows :]}


def _print(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"holdfast: {text}\n".encode())
