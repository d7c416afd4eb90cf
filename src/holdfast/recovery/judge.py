"""Judgement: follow a run, say what is wrong with it, decide what to do, and wait for the answer before judging on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.diagnosis import Diagnosis, diagnose
from holdfast.inside.mailbox import post
from holdfast.inside.policy import Policy as Allowed
from holdfast.probe.journal import JournalReader
from holdfast.recovery.changes import STEPS, Proposal, propose
from holdfast.recovery.course import Course, Seen
from holdfast.recovery.past import ActionLog
from holdfast.recovery.policy import Policy
from holdfast.recovery.resume_watch import ResumeWatches
from holdfast.recovery.table_watch import TableWatches
from holdfast.signals.actions import Action
from holdfast.signals.run_folder import RunFolder

_AHEAD_STEPS = 4  # several ranks get a letter this long before they act on it, and as many seconds as these:
_AHEAD_SECONDS, _AHEAD_SECONDS_HERE = (
    3.0,
    1.0,
)  # another machine may see a file late; a rank on this one reads it at its next step
_ANSWER_SECONDS, _ANSWER_STEPS = 60.0, 50  # no answer after both: it was not heard
_WAITED_FOR = ("roll-back", "save-checkpoint", "stop")  # the rest is judged on meanwhile: it may not be enough
_ASK_AT_MOST = 6  # times about one diagnosis


@dataclass(slots=True)
class _Letter:
    number: int
    at: int
    action: Action
    course: Course
    diagnosis: Diagnosis
    posted: float
    asked: int  # how often policies were asked about this diagnosis


class Judge:
    """One judgement for a run. `look` is called a few times a second; the cost of a look depends on the new rows only."""

    def __init__(
        self,
        run: RunFolder,
        policies: Sequence[Policy] = (),
        allowed: Allowed | None = None,
        *,
        on_trouble: Callable[[str, BaseException], None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._policies, self._now = run, list(policies), now
        self._allowed = allowed or Allowed("heal")
        self._on_trouble = on_trouble
        self._journal = JournalReader(run.journal.path)
        self._courses: dict[int, Course] = {}
        self._resumes: ResumeWatches | None = ResumeWatches(run)
        self._tables: TableWatches | None = TableWatches()
        self._letter: _Letter | None = None
        self._changes_seen, self._number = 0, 0
        self._act = True

    def look(self, *, act: bool = True) -> None:
        """Judge what has come since the last look. Without `act` (the run has ended) findings are told and nothing is decided."""
        self._journal.new_rows()
        self._act = act
        if not act:
            self._letter = None
        self._look_at_resumes()
        self._look_at_tables()
        if (letter := self._letter) is not None:
            if not self._answered(letter) or self._asked_again(letter):
                return
            self._letter = None
        self._find_courses()
        self._look_at_changes()
        for course in list(self._courses.values()) if self._letter is None else ():
            for seen in course.read():
                self._judge(course, seen)
                if self._letter is not None:
                    return

    def _look_at_resumes(self) -> None:
        """Judge the first steps after a resume. Nothing is done about it: only the script knows what it should have loaded."""
        if self._resumes is None:
            return
        try:
            for finding in self._resumes.look(self._journal.rows, last=not self._act):
                self._run.journal.write("finding", **finding.as_row())
                if finding.severity != "info":
                    self._run.journal.write("diagnosis", **diagnose([finding]).as_row())
        except Exception as error:  # noqa: BLE001 - the run before may be anything; this one is judged on
            self._resumes = None
            if self._on_trouble is not None:
                self._on_trouble("watching a resume", error)

    def _look_at_tables(self) -> None:
        """Say what the tables show beside the course of loss and norm. Nothing is done about it."""
        if self._tables is None:
            return
        try:
            for finding in self._tables.look(self._run, last=not self._act):
                self._run.journal.write("finding", **finding.as_row())
                if finding.severity != "info":
                    self._run.journal.write("diagnosis", **diagnose([finding], around=self._journal.rows).as_row())
        except Exception as error:  # noqa: BLE001 - the run is judged on
            self._tables = None
            if self._on_trouble is not None:
                self._on_trouble("looking at the tables", error)

    def _find_courses(self) -> None:
        for recording in self._run.recordings() if self._run.path.is_dir() else ():
            course = self._courses.get(recording.part)
            if course is None:
                self._courses[recording.part] = Course(recording)
            elif recording not in course.recordings:
                course.recordings.append(recording)

    def _judge(self, course: Course, seen: Seen) -> None:
        for finding in seen.new:
            self._run.journal.write("finding", **finding.as_row())
        newest = course is self._courses[max(self._courses)]
        weighty = any(finding.severity != "info" for finding in seen.new)
        plateau = any(finding.code == "loss-plateau" for finding in seen.holds)
        if not newest or not (weighty or plateau):
            return
        findings = {finding.code: finding for finding in (*course.recent(), *seen.holds)}
        diagnosis = self._diagnose(course, tuple(findings.values()))
        if weighty:
            self._run.journal.write("diagnosis", **diagnosis.as_row())
        action = self._decide(course, diagnosis)
        if action is not None:
            self._post(course, diagnosis, action)

    def _look_at_changes(self) -> None:
        """The script has changed a setting: after enough steps, propose the learning rate that goes with it."""
        own = [row for row in self._journal.rows if row.get("kind") == "change" and "do" not in row]  # not made from outside
        changes = [row for row in own if isinstance(row.get("step"), int)]
        for row in changes[self._changes_seen :]:
            course = self._courses[max(self._courses)] if self._courses else None
            if course is None or course.step < row["step"] + STEPS:
                return
            self._changes_seen += 1
            proposal = propose(str(row.get("what", "")), *course.norms_around(row["step"], STEPS))
            if proposal is not None:
                self._propose(course, row, proposal)

    def _propose(self, course: Course, row: Mapping[str, Any], proposal: Proposal) -> None:
        evidence = {"what": row.get("what"), "onset": row["step"], **proposal.as_row()}
        diagnosis = Diagnosis((), ("setting-changed",), step=course.step, evidence=evidence)
        self._run.journal.write("diagnosis", **diagnosis.as_row())
        if self._act and self._policies and proposal.factor < 1.0 and self._allowed.heals_from("setting-changed"):
            settings = {"factor": proposal.factor, "why": proposal.words}
            self._post(course, diagnosis, Action("lower-lr", step=course.step, because="setting-changed", settings=settings))

    def _asked_again(self, letter: _Letter) -> bool:
        """A refusal leaves the trouble where it was, and a checkpoint was only the first half: ask about the same again."""
        states = {row["state"] for row in self._journal.rows if _answers(row, letter.number)}
        if letter.asked >= _ASK_AT_MOST or (states == {"done"} and letter.action.kind != "save-checkpoint"):
            return False
        action = self._decide(letter.course, letter.diagnosis)
        if action is not None:
            self._post(letter.course, letter.diagnosis, action, asked=letter.asked + 1)
        return action is not None

    def _diagnose(self, course: Course, findings: Sequence[Finding]) -> Diagnosis:
        around = [row for row in self._journal.rows if row.get("kind") in ("finding", "change")]
        return diagnose(findings, around=around, snapshots=course.snapshots())

    def _decide(self, course: Course, diagnosis: Diagnosis) -> Action | None:
        """Ask the policies in their order about the findings that may be acted on."""
        wanted = tuple(finding for finding in diagnosis.findings if self._allowed.heals_from(finding.code))
        if not wanted or not self._policies or not self._act:
            return None
        question = diagnose(wanted, around=self._journal.rows, snapshots=course.snapshots())
        past = ActionLog.from_rows(self._journal.rows)
        for policy in list(self._policies):
            try:
                action = policy.decide(question, past)
            except Exception as error:  # noqa: BLE001 - a policy may be anyone's; the others are still asked
                self._policies.remove(policy)
                if self._on_trouble is not None:
                    self._on_trouble(f"asking the policy {type(policy).__name__}", error)
                continue
            if action is not None:
                return action
        return None

    def _post(self, course: Course, diagnosis: Diagnosis, action: Action, *, asked: int = 1) -> None:
        told = (int(row.get("number") or 0) for row in self._journal.rows if row.get("kind") == "action")
        number = self._number = 1 + max(self._number, max(told, default=0))
        at = 0
        if len(course.recordings) > 1:
            seconds, before = course.step_seconds(), _AHEAD_SECONDS_HERE if course.is_here() else _AHEAD_SECONDS
            ahead = math.ceil(before / seconds) if seconds > 0 else _AHEAD_STEPS
            at = course.newest_step() + max(_AHEAD_STEPS, ahead)
        self._run.journal.write("action", **action.as_row(), number=number, at=at, state="posted")
        post(self._run.path, number, at, action)
        if action.kind in _WAITED_FOR:
            self._letter = _Letter(number, at, action, course, diagnosis, self._now(), asked)

    def _answered(self, letter: _Letter) -> bool:
        """Whether every rank has done or refused it; then take the consequences."""
        answers = [row for row in self._journal.rows if _answers(row, letter.number)]
        ranks = {row.get("rank") for row in answers}
        if len(ranks) < len(letter.course.recordings):
            if not self._unheard(letter):
                return False
            if not answers:
                row = {"number": letter.number, "state": "refused", "detail": "the training did not answer"}
                self._run.journal.write("action", **letter.action.as_row(), **row)
                answers = [row]
        self._journal.new_rows()
        done = all(row.get("state") == "done" for row in answers)
        if done and letter.action.kind == "roll-back":
            self._rolled_back(letter, answers)
        return True

    def _rolled_back(self, letter: _Letter, answers: Sequence[Mapping[str, Any]]) -> None:
        told = [int(row["at"]) for row in answers if isinstance(row.get("at"), int)]
        at = (max(told, default=0) or letter.at or letter.course.newest_step() + 1) - 1  # it came before that step
        to = answers[0].get("to", letter.action.settings.get("to"))
        letter.course.undone(to if isinstance(to, int) else letter.action.step, at)

    def _unheard(self, letter: _Letter) -> bool:
        waited = self._now() - letter.posted
        return waited > _ANSWER_SECONDS and letter.course.newest_step() > max(letter.at, letter.action.step) + _ANSWER_STEPS


def _answers(row: Mapping[str, Any], number: int) -> bool:
    return row.get("kind") == "action" and row.get("number") == number and row.get("state") in ("done", "refused")
