"""What happens after an attempt: what it died of is written down and said, and under `heal` it is started again
(`starting_again.py`).

A hang is ended here, too: the watch calls `hung` in its own thread, and the attempt then ends like any other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.inside.policy import Policy
from holdfast.signals.nodes import NodeState
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.attempts import stopped, workers_of
from holdfast.supervisor.facts import may_lose_nodes
from holdfast.supervisor.forwarding import Forwarding
from holdfast.supervisor.launch import Launch
from holdfast.supervisor.memory_events import MemoryEvents
from holdfast.supervisor.starting_again import StartingAgain
from holdfast.supervisor.train_log import TrainLog, speaks_of_errors

if TYPE_CHECKING:
    from holdfast.detectors.finding import Finding
    from holdfast.signals.actions import Action
    from holdfast.supervisor.leading import Leader
    from holdfast.supervisor.outside import Outside
    from holdfast.supervisor.post_mortem import PostMortem

_LOG_SECONDS = 2.0
_BY_ITSELF_SECONDS = 10.0
_ELASTIC_SECONDS = 120.0  # the backend notices that a peer is gone, torchrun waits for other nodes, the ranks start


class Restarts:
    """The attempts of one run."""

    def __init__(
        self, launch: Launch, run: RunFolder, signals: Forwarding, trouble: Trouble, leader: Leader | None = None
    ) -> None:
        self._launch, self._run, self._signals, self._trouble, self._leader = launch, run, signals, trouble, leader
        if leader is not None:
            leader.on_loss, leader.on_replaced = self._lost, self._replaced
        self._policy = Policy(launch.settings.policy, dict(launch.settings.rules))
        self._again = StartingAgain(launch, run, signals)
        self._ended_for: Finding | None = None  # here: a hang, a lost node, a roll-back
        self._rolling_back: Action | None = None  # that is done by starting the training again
        self._summary: list[str] = []
        self._ending = threading.Lock()  # held while a hang is being ended
        self._pid, self._since, self._log_from = 0, 0.0, 0
        self._memory = MemoryEvents()
        self._over, self._waits = threading.Event(), dict[str, Any]()  # where the others waited when a node failed

    def first(self) -> Launch:
        """The first attempt."""
        return self._again.first()

    def begins(self, pid: int, outside: Outside) -> None:
        """An attempt has been started."""
        self._pid, self._since, self._ended_for, self._rolling_back = pid, time.time(), None, None
        self._waits.clear()
        self._over.clear()
        self._memory = MemoryEvents()
        outside.follow(pid)
        outside.hang.on_hang = self.hung if self._policy.heals else self._say_hang
        outside.judging.restart = self.roll_back

    def hung(self, finding: Finding) -> None:
        """The training hangs: end it with everything that it has started, where the policy allows that."""
        if self._policy.heals_from(finding.code) and not self._signals.requested:
            with self._ending:
                self._ended_for = finding
                self._end_all(finding)

    def roll_back(self, finding: Finding, action: Action) -> bool:
        """End the training, to start it again from before the trouble. False: the last restart is kept for a crash."""
        from holdfast.supervisor.resume import find_origin

        origin = find_origin(self._run, before=int(action.settings["before"]))
        if self._leader is not None or not self._again.has_one_to_spare or origin.kept is None:
            return False
        with self._ending:
            if self._over.is_set() or self._ended_for is not None or self._signals.requested is not None:
                return False
            self._ended_for, self._rolling_back = finding, action
            self._end_all(finding)
        return True

    def _lost(self, node: NodeState, seconds: float | None) -> None:
        """Another node failed, or is not heard of any more: the stacks of those who wait for it are kept, then all is ended."""
        from holdfast.supervisor.losses import loss_finding, tell

        finding = loss_finding(self._run, node, seconds)
        if node.requested is not None:
            self._signals.requested = signal.Signals[node.requested]
        if seconds is None:
            self._waits = {name: finding.evidence[name] for name in ("others", "stacks") if name in finding.evidence}
            self._over.wait(_BY_ITSELF_SECONDS)  # a rank without its peer usually fails by itself, and says more
        if self._trains_on(node):
            tell(self._run, finding)
            return
        with self._ending:
            if self._over.is_set() or not self._policy.heals_from(finding.code):
                return
            if seconds is not None:
                self._ended_for = finding
                tell(self._run, finding)
            self._end_all(finding)

    def _replaced(self, node: NodeState, seconds: float) -> None:
        """Another node was gone, and is back before it counted as lost: what ended it there is not known."""
        from holdfast.supervisor.losses import lost_finding, tell

        tell(self._run, lost_finding(self._run, node, seconds, [], is_back=True))

    def _trains_on(self, node: NodeState) -> bool:
        """Whether the ranks that are left make steps again: an elastic torchrun starts them without the others, in its time."""
        from holdfast.supervisor.losses import steps_made

        if not may_lose_nodes(self._launch.command.arguments, os.environ):
            return False
        before, deadline = steps_made(self._run, without=node.host), time.monotonic() + _ELASTIC_SECONDS
        while not self._over.wait(1.0) and time.monotonic() < deadline:
            if steps_made(self._run, without=node.host) > before:
                return True
        return False

    def _end_elsewhere(self, code: int) -> None:
        """The other nodes end this attempt too. One that does not answer is what it ended of."""
        from holdfast.supervisor.losses import lost_finding, tell

        lost = self._leader.ends(code) if self._leader is not None else []
        if lost and self._ended_for is None:
            self._ended_for = lost_finding(self._run, lost[0].state, lost[0].seconds, [])
            tell(self._run, self._ended_for)

    def _say_hang(self, finding: Finding) -> None:
        say = str(finding.evidence.get("say") or finding.code)
        why = say.partition(" No step for ")[0].rstrip(".")  # the line has the time itself
        silent = f"no progress for {float(finding.evidence.get('seconds') or 0.0):.0f} s after step {finding.step:,}"
        _print(f"holdfast: {silent}: {why} (holdfast backtrace {self._run.target})")

    def _end_all(self, finding: Finding) -> None:
        from holdfast.supervisor.ending import end_all

        row = end_all(self._run, self._pid)
        with contextlib.suppress(OSError):
            detail = f"{row['processes']} processes ended, {row['killed']} of them killed"
            settings = {key: value for key, value in row.items() if key in ("left", "gpu_free_after")}
            action = {"action": "end-processes", "step": finding.step, "because": finding.code, "settings": settings}
            self._run.journal.write("action", **action, state="done", detail=detail)

    def look_at_end(self, code: int) -> None:
        """An attempt that ended with 0 while it was fast-forwarded has not done its work."""
        rows = [row for row in self._run.journal if row.get("event") == "stopped-early"] if code == 0 else []
        if rows and float(rows[-1].get("time") or 0) >= self._since and self._ended_for is None:
            from holdfast.detectors.finding import Finding

            ended = "stopped early while it was fast-forwarded: evaluations do not improve meanwhile"
            evidence = {"exit_code": 0, "ended": ended, "stopped_early": True}
            self._ended_for = Finding("process-died", step=int(rows[-1].get("step") or 0), severity="warning", evidence=evidence)

    @property
    def has_ended_it(self) -> bool:
        """Whether it was ended here, whatever code it then left with."""
        return self._ended_for is not None

    @property
    def trains(self) -> bool:
        """Whether the attempt is a training: only a process that has torch in it is one."""
        folder = self._run.path
        return (folder / "faults").is_dir() or (folder.is_dir() and bool(self._run.recordings()))

    def ended_well(self, log: TrainLog) -> None:
        """An attempt has ended with 0. Some scripts catch the error that ends their training: it is reported, nothing is done."""
        try:
            if self.trains:
                log.flush(_LOG_SECONDS)
                if speaks_of_errors(log.path, self._log_from):
                    self._tell_caught_error()
        except Exception as error:  # noqa: BLE001 - the command's exit code must come out whatever happens here
            self._trouble.step_back("looking into how it ended", error)

    def _tell_caught_error(self) -> None:
        from holdfast.diagnosis.diagnosis import diagnose
        from holdfast.supervisor.post_mortem import caught_error

        finding = caught_error(self._run, since=self._since, log_from=self._log_from)
        rows = list(self._run.journal)
        if finding is not None and not any(row.get("kind") == "finding" and row.get("code") == finding.code for row in rows):
            self._run.journal.write("finding", **finding.as_row())
            self._run.journal.write("diagnosis", **diagnose([finding], around=rows).as_row())

    def after(self, code: int, log: TrainLog, outside: Outside) -> Launch | None:
        """An attempt has ended badly, or was asked to end: the next one, or None."""
        try:
            return self._after(code, log, outside) if self._run.path.is_dir() else None
        except Exception as error:  # noqa: BLE001 - the command's exit code must come out whatever happens here
            self._trouble.step_back("looking into how it ended", error)
            return None

    def _after(self, code: int, log: TrainLog, outside: Outside) -> Launch | None:
        self._over.set()
        log.flush(_LOG_SECONDS)
        with self._ending:
            pass  # who is being ended is waited for
        if self._ended_for is None and stopped(self._run, self._since):
            return None
        self._end_elsewhere(code)
        post_mortem = self._examine(code, outside)
        self._log_from = log.size
        if self._ended_for is None and self._signals.requested is not None:
            self._note_requested(post_mortem, self._signals.requested)
            return None
        if self.trains or post_mortem.is_worth_reporting:
            self._keep(post_mortem)
        return self._next(post_mortem, code) if self.trains and self._policy.heals_from(post_mortem.finding.code) else None

    def _next(self, post_mortem: PostMortem, code: int) -> Launch | None:
        next_one = self._again.after(
            post_mortem,
            code,
            since=self._since,
            why=self._why(post_mortem),
            ended_here=self._ended_for is not None,
            rolling_back=self._rolling_back,
        )
        if isinstance(next_one, Launch):
            self._summary = []
            return next_one
        self._summary += [f"  {next_one}"] if next_one else []
        return None

    def _why(self, post_mortem: PostMortem) -> str:
        """The line that says why it is started again."""
        if self._rolling_back is not None:
            from holdfast.probe.words import finding_words

            finding = post_mortem.finding
            return f"holdfast: {finding_words(finding.code)}, since step {finding.onset:,} [{finding.code}]"
        return self._summary[0] if self._summary else f"holdfast: {post_mortem.finding.code}"

    def _note_requested(self, post_mortem: PostMortem, requested: signal.Signals) -> None:
        """Somebody has ended it, and the training is not to blame: that is an info."""
        evidence = {"exit_code": post_mortem.ended.exit_code, "ended": f"ended by {requested.name}", "steps": post_mortem.steps}
        with contextlib.suppress(OSError):
            self._run.journal.write(
                "finding", code="process-died", severity="info", step=post_mortem.ended.step or 0, evidence=evidence
            )

    def say(self, refused: OSError | None = None) -> None:
        """Print what there is to say, after all that the command has printed: how it ended, or what was wrong before it did.

        `refused`: the run folder could not be written at the end.
        """
        if refused is not None and self._run.path.is_dir():
            where = f"{self._run.path} is not writable ({refused.strerror})"
            _print(f"holdfast: the record of {self._run.name} is incomplete: {where}")
        if self._summary:
            _print("\n".join(self._summary))
            return
        try:
            line = self._verdict()
        except Exception as error:  # noqa: BLE001 - the command's exit code must come out whatever happens here
            self._trouble.step_back("summing up", error)
            return
        if line is not None:
            _print(line)

    def _verdict(self) -> str | None:
        if not self._run.journal.path.exists() or self._run.info().get("exit_code") != 0:
            return None
        from holdfast.diagnosis.run_verdict import verdict_on

        verdict = verdict_on(self._run)
        return None if verdict is None else f"holdfast: {verdict.text}"

    def _examine(self, code: int, outside: Outside) -> PostMortem:
        from holdfast.supervisor.losses import failed_first
        from holdfast.supervisor.post_mortem import examine

        failed = failed_first(self._run, self._log_from, self._leader.failed()) if self._leader is not None else None
        return examine(
            self._run,
            exit_code=failed.code or 1 if failed is not None else code,
            elsewhere=failed,
            waits=self._waits,
            since=self._since,
            log_from=self._log_from,
            attempt=self._again.number,
            killed_for_memory=self._memory.killed() if failed is None else None,
            files=outside.most_files,
            hang=self._ended_for,
            workers=workers_of(self._run),
        )

    def _keep(self, post_mortem: PostMortem) -> None:
        from holdfast.supervisor.post_mortem import keep, summary

        keep(self._run, post_mortem)
        damaged = self._tell_damaged(post_mortem)
        *lines, more = summary(self._run, post_mortem)
        self._summary = [*lines, *damaged, more] if post_mortem.is_worth_reporting else []

    def _tell_damaged(self, post_mortem: PostMortem) -> list[str]:
        """Files that the end has left damaged: into the journal, and as lines for the terminal."""
        from holdfast.diagnosis.diagnosis import diagnose
        from holdfast.supervisor.damaged import damaged_files

        lines = []
        for finding in damaged_files(self._run, since=self._since, end=post_mortem.finding) if post_mortem.trained else ():
            with contextlib.suppress(OSError):
                self._run.journal.write("finding", **finding.as_row())
                self._run.journal.write("diagnosis", **diagnose([finding]).as_row())
            lines.append(f"  {Path(finding.evidence['path']).name} is damaged [checkpoint-torn]: {finding.evidence['why']}")
        return lines


def _print(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))
