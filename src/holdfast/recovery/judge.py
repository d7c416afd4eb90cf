"""Judgement: follow a run, say what is wrong with it, decide what to do, and wait for the answer before judging on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.diagnosis import Diagnosis, diagnose
from holdfast.inside.policy import Policy as Allowed
from holdfast.probe.journal import JournalReader
from holdfast.recovery.changes import STEPS, Proposal, propose
from holdfast.recovery.course import Course, Seen
from holdfast.recovery.over import is_over
from holdfast.recovery.past import ActionLog
from holdfast.recovery.patient_journal import PatientJournal
from holdfast.recovery.policy import Policy
from holdfast.recovery.resume_watch import ResumeWatches
from holdfast.recovery.roll_back import CALLED_BY
from holdfast.recovery.table_watch import TableWatches
from holdfast.signals.action_queue import post
from holdfast.signals.actions import Action
from holdfast.signals.run_folder import Recording, RunFolder

_AHEAD_STEPS = 4  # an action is queued this many steps before several ranks act on it, and as many seconds as these:
_AHEAD_SECONDS, _AHEAD_SECONDS_HERE = 3.0, 1.0  # another machine may see a file late; a local rank reads it at its next step
_ANSWER_SECONDS, _ANSWER_STEPS = 60.0, 50  # no answer after both: it was not heard
_WAITED_FOR = ("roll-back", "save-checkpoint", "stop")  # the rest is judged on meanwhile: it may not be enough
_BAD_STATE = "checkpoint-non-finite"
_ASK_AT_MOST = 6  # times about one diagnosis
_LARGE_PART = 0.02  # of all steps so far


@dataclass(slots=True)
class _QueuedAction:
    number: int
    at: int
    action: Action
    course: Course
    diagnosis: Diagnosis
    posted: float
    num_decisions: int  # how often policies decided about this diagnosis
    sent: bool = False  # it is queued


class Judge:
    """One judgement for a run. `look` is called a few times a second; the cost of a look depends on the new rows only."""

    def __init__(
        self,
        run: RunFolder,
        policies: Sequence[Policy] = (),
        allowed: Allowed | None = None,
        *,
        restart: Callable[[Finding, Action], bool] | None = None,
        on_trouble: Callable[[str, BaseException], None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`restart` does a roll-back by ending the training and starting it again; False if that cannot be."""
        self._run, self._policies, self._now, self._restart = run, list(policies), now, restart
        self._allowed = allowed or Allowed("heal")
        self._on_trouble = on_trouble
        self._journal, self._out = JournalReader(run.journal.path), PatientJournal(run.journal, on_trouble)
        self._courses: dict[int, Course] = {}
        self._listed: list[Recording] = []
        self._resumes: ResumeWatches | None = ResumeWatches(run)
        self._tables: TableWatches | None = TableWatches()
        self._queued: _QueuedAction | None = None
        self._changes_seen, self._states_seen, self._number = 0, 0, 0
        self._untried: set[int] = set()  # queued actions whose training was over
        self._part_of: dict[int, int] = {}  # which training of the run an action is for, by its number
        self._act = True

    def look(self, *, act: bool = True) -> None:
        """Judge the new rows. Without `act` (the run has ended) findings are reported and nothing is decided."""
        self._journal.new_rows()
        self._act = act
        if not act:
            self._queued = None
        if not self._out.catch_up() and act:
            return  # what was found is told first, and nothing is done that cannot be told
        self._look_at_resumes()
        self._look_at_tables()
        if self._queued is not None and not self._queued.sent and not self._is_over(self._queued.course):
            self._queued.at = _near(self._queued.course)  # the ranks went on meanwhile
            self._send(self._queued)
        if (queued := self._queued) is not None:
            if not self._answered(queued) or self._asked_again(queued):
                return
            self._queued = None
        self._find_courses()
        self._look_at_states()
        self._look_at_changes()
        for course in list(self._courses.values()) if self._queued is None else ():
            for seen in course.read(self._resumes.evaluations_before(course.part) if self._resumes is not None else ()):
                self._judge(course, seen)
                if self._queued is not None:
                    return

    def _look_at_resumes(self) -> None:
        """Judge the first steps after a resume. Nothing is done about it: only the script knows what it should have loaded."""
        if self._resumes is None:
            return
        try:
            for finding in self._resumes.look(self._journal.rows, last=not self._act):
                self._out.write("finding", **finding.as_row())
                if finding.severity != "info":
                    self._out.write("diagnosis", **diagnose([finding]).as_row())
        except OSError as error:  # a full disk has room again some day
            self._tell_trouble("watching a resume", error)
        except Exception as error:  # noqa: BLE001 - the run before may be anything; this one is judged on
            self._resumes = None
            self._tell_trouble("watching a resume", error)

    def _look_at_tables(self) -> None:
        """Say what the tables show beside the course of loss and norm. Nothing is done about it."""
        if self._tables is None:
            return
        try:
            undone = max((course.rolled_back_at for course in self._courses.values()), default=-1)
            for finding in self._tables.look(self._run, last=not self._act):
                if "seen_at" in finding.evidence and int(finding.evidence["seen_at"]) <= undone:
                    continue
                self._out.write("finding", **finding.as_row())
                if finding.severity != "info":
                    self._out.write("diagnosis", **diagnose([finding], around=self._journal.rows).as_row())
        except OSError as error:  # it may be read again some day
            self._tell_trouble("looking at the tables", error)
        except Exception as error:  # noqa: BLE001 - the run is judged on
            self._tables = None
            self._tell_trouble("looking at the tables", error)

    def _tell_trouble(self, part: str, error: BaseException) -> None:
        if self._on_trouble is not None:
            self._on_trouble(part, error)

    def _recordings(self) -> list[Recording]:
        return self._run.recordings() if self._run.path.is_dir() else []

    def _find_courses(self) -> None:
        recordings = self._recordings()
        if recordings is self._listed:  # the same list as long as nothing changes
            return
        self._listed = recordings
        for recording in recordings:
            course = self._courses.get(recording.part)
            if course is None:
                self._courses[recording.part] = Course(recording, self._earlier(recording))
            elif recording not in course.taken:
                course.add(recording)

    def _earlier(self, recording: Recording) -> Course | None:
        """The newest course before it of the same training: a script may begin several, each with checkpoints of its own."""
        own = recording.info().get("checkpoints")
        parts = [part for part in self._courses if part < recording.part]
        same = [part for part in parts if self._courses[part].recordings[0].info().get("checkpoints") == own]
        return self._courses[max(same)] if same else None

    def _course_of(self, row: Mapping[str, Any]) -> Course | None:
        """The course that a row of the journal is about: the newest, if it does not say."""
        name = row.get("recording")
        named = (course for course in self._courses.values() if any(one.name == name for one in course.recordings))
        return next(named, self._courses[max(self._courses)] if self._courses else None)

    def _judge(self, course: Course, seen: Seen) -> None:
        for finding in seen.new:
            self._out.write("finding", **finding.as_row())
        weighty = any(finding.severity != "info" for finding in seen.new)
        plateau = any(finding.code == "loss-plateau" for finding in seen.holds)
        newest = course is self._courses[max(self._courses)]
        if not (weighty or plateau) or not (newest or not self._is_over(course)):
            return
        findings = {finding.code: finding for finding in (*course.recent(), *seen.holds)}
        diagnosis = self._diagnose(course, tuple(findings.values()))
        if weighty:
            self._out.write("diagnosis", **diagnosis.as_row())
        action = self._decide(course, diagnosis)
        if action is not None:
            self._post(course, diagnosis, action)

    def _look_at_states(self) -> None:
        """A state that was to be kept holds NaN or Inf, unlike others before: normalisation may hide that from the loss. Or a
        weight is so damaged that no update gets past it: going back at once loses the least.
        """
        evidence_of = ((row, row.get("evidence") or {}) for row in self._journal.rows)
        rows = [
            (row, evidence)
            for row, evidence in evidence_of
            if (row.get("code") == _BAD_STATE and "in_a_row" in evidence) or evidence.get("damaged")
        ]
        for row, evidence in rows[self._states_seen :]:
            course = self._course_of(row)
            if course is None or self._queued is not None:
                return
            self._states_seen += 1
            if evidence.get("damaged") and not self._policies:  # nothing is lost by waiting for more such steps
                continue
            step, clean = int(row.get("step") or 0), course.snapshots()
            older = clean[:1] if evidence.get("damaged") else clean[-1:]  # states with such a weight pass for clean
            if older and older[0] < step and step > course.rolled_back_at:
                facts = {name: evidence[name] for name in ("bad_tensors", "weights") if name in evidence}
                finding = Finding(
                    "non-finite-weights",
                    step=step,
                    severity="critical",
                    evidence={"onset": step, **facts, **course.jumped_rate(step, evidence.get("lr"))},
                )
                self._judge(course, Seen((finding,), (finding,)))

    def _look_at_changes(self) -> None:
        """The script has changed a setting: propose the learning rate that goes with it, after enough steps to compare if there
        were some before the change.
        """
        own = [row for row in self._journal.rows if row.get("kind") == "change" and "do" not in row]  # not made from outside
        changes = [row for row in own if isinstance(row.get("step"), int)]
        for row in changes[self._changes_seen :]:
            course = self._courses[max(self._courses)] if self._courses else None
            if course is None or course.step < row["step"] + (STEPS if course.first_step < row["step"] else 0):
                return
            self._changes_seen += 1
            proposal = propose(str(row.get("what", "")), *course.norms_around(row["step"], STEPS))
            if proposal is not None:
                self._propose(course, row, proposal)
            if self._queued is not None:
                return

    def _propose(self, course: Course, row: Mapping[str, Any], proposal: Proposal) -> None:
        evidence = {"what": row.get("what"), "onset": row["step"], **proposal.as_row()}
        diagnosis = Diagnosis((), ("setting-changed",), step=course.step, evidence=evidence)
        self._out.write("diagnosis", **diagnosis.as_row())
        if self._may_act(course) and proposal.factor < 1.0 and self._allowed.heals_from("setting-changed"):
            settings = {"factor": proposal.factor, "why": proposal.reason}
            self._post(course, diagnosis, Action("lower-lr", step=course.step, because="setting-changed", settings=settings))

    def _asked_again(self, queued: _QueuedAction) -> bool:
        """A refusal leaves the trouble where it was, and a checkpoint was only the first half: ask about the same again."""
        states = {row["state"] for row in self._journal.rows if _answers(row, queued.number)}
        if queued.num_decisions >= _ASK_AT_MOST or (states == {"done"} and queued.action.kind != "save-checkpoint"):
            return False
        action = self._decide(queued.course, queued.diagnosis)
        if action is not None:
            self._post(queued.course, queued.diagnosis, action, num_decisions=queued.num_decisions + 1)
        return action is not None

    def _diagnose(self, course: Course, findings: Sequence[Finding]) -> Diagnosis:
        around = [row for row in self._journal.rows if row.get("kind") in ("finding", "change")]
        return diagnose(findings, around=around, snapshots=course.snapshots())

    def _may_act(self, course: Course) -> bool:
        return self._act and bool(self._policies) and not self._is_over(course)

    def _is_over(self, course: Course) -> bool:
        return is_over(course.recordings, self._recordings())

    def _decide(self, course: Course, diagnosis: Diagnosis) -> Action | None:
        """Ask the policies in their order about the findings that may be acted on."""
        wanted = tuple(finding for finding in diagnosis.findings if self._allowed.heals_from(finding.code))
        if not wanted or not self._may_act(course):
            return None
        damaged = {} if (step := self._damaged_at(course)) is None else {"damaged_at": step}
        question = diagnose(wanted, around=self._journal.rows, snapshots=course.snapshots(), **damaged)
        others = {number for number, part in self._part_of.items() if part != course.part}
        past = ActionLog.from_rows(row for row in self._journal.rows if row.get("number") not in self._untried | others)
        for policy in list(self._policies):
            try:
                action = policy.decide(question, past)
            except Exception as error:  # noqa: BLE001 - a policy may be anyone's; the others are still asked
                self._policies.remove(policy)
                self._tell_trouble(f"asking the policy {type(policy).__name__}", error)
                continue
            if action is not None:
                return action
        return None

    def _damaged_at(self, course: Course) -> int | None:
        """The first step since the last roll-back whose bad update met a damaged weight. A large one may be the rate's work."""
        found = (row for row in self._journal.rows if row.get("kind") == "finding" and (row.get("evidence") or {}).get("damaged"))
        steps = (int(row.get("step") or 0) for row in found if self._course_of(row) is course)
        return min((step for step in steps if step > course.rolled_back_at), default=None)

    def _starts_again(self, course: Course, diagnosis: Diagnosis, action: Action) -> bool:
        """Whether a roll-back is done by a restart, which makes the undone steps again: of a young run they are a large part.
        Once only, and only where the learning rate stays: what is not the rate's work probably came from outside. A script that
        has trained other models before, or trains them in turns, is not ended for one of them.
        """
        if self._restart is None or action.kind != "roll-back" or action.settings.get("lr_factor") != 1.0:
            return False
        undone = course.newest_step() - int(action.settings["before"])
        finding = diagnosis.finding(action.because)
        if finding is None or len(course.recordings) > 1 or undone < _LARGE_PART * course.newest_step():
            return False
        attempts = [recording.info().get("attempt") for recording in self._recordings()]
        before = any(row.get("action") == "restart" and row.get("because") in CALLED_BY for row in self._journal.rows)
        if before or attempts.count(course.recordings[0].info().get("attempt")) > 1 or not self._restart(finding, action):
            return False
        course.undone(int(action.settings["before"]), course.newest_step())
        return True

    def _post(self, course: Course, diagnosis: Diagnosis, action: Action, *, num_decisions: int = 1) -> None:
        if num_decisions == 1 and self._starts_again(course, diagnosis, action):
            return
        numbers_used = (int(row.get("number") or 0) for row in self._journal.rows if row.get("kind") == "action")
        number = self._number = 1 + max(self._number, max(numbers_used, default=0))
        queued = self._queued = _QueuedAction(number, _near(course), action, course, diagnosis, self._now(), num_decisions)
        self._part_of[number] = course.part
        self._out.write("action", **action.as_row(), number=number, at=queued.at, state="posted")
        if self._out.catch_up():
            self._send(queued)

    def _send(self, queued: _QueuedAction) -> None:
        """Put it into the action queue. If that has no room, it is tried again at the next look."""
        try:
            post(self._run.path, queued.number, queued.at, queued.action, part=queued.course.part)
        except OSError as error:
            self._tell_trouble("posting an action", error)
            return
        queued.sent, queued.posted = True, self._now()
        if queued.action.kind not in _WAITED_FOR:
            self._queued = None

    def _answered(self, queued: _QueuedAction) -> bool:
        """Whether every rank has done or refused it; then take the consequences."""
        answers = self._answers_to(queued)
        if len({row.get("rank") for row in answers}) < len(queued.course.recordings):
            over = self._is_over(queued.course)
            if not over and not self._unheard(queued):
                return False
            answers = self._answers_to(queued)  # its last words may have come meanwhile
            if not answers and not self._give_up(queued, over=over):
                return False
        if answers and queued.action.kind == "roll-back" and all(row.get("state") == "done" for row in answers):
            self._rolled_back(queued, answers)
        return True

    def _answers_to(self, queued: _QueuedAction) -> list[dict[str, Any]]:
        self._journal.new_rows()
        return [row for row in self._journal.rows if _answers(row, queued.number)]

    def _give_up(self, queued: _QueuedAction, *, over: bool) -> bool:
        """Say that nobody answers. While the journal takes nothing, an answer may have been lost as well: wait on."""
        why = "no answer from the training" if queued.sent else "it could not be posted"
        row = {"number": queued.number, "state": "refused", "detail": "the training is over" if over else why}
        try:
            self._run.journal.write("action", **queued.action.as_row(), **row)
        except OSError as error:
            self._tell_trouble("writing to the journal", error)
            queued.posted = self._now()
            return False
        self._journal.new_rows()
        if over:
            self._untried.add(queued.number)
        return True

    def _rolled_back(self, queued: _QueuedAction, answers: Sequence[Mapping[str, Any]]) -> None:
        steps = [int(row["at"]) for row in answers if isinstance(row.get("at"), int)]
        at = (max(steps, default=0) or queued.at or queued.course.newest_step() + 1) - 1  # it came before that step
        to = answers[0].get("to", queued.action.settings.get("to"))
        queued.course.undone(to if isinstance(to, int) else queued.action.step, at)

    def _unheard(self, queued: _QueuedAction) -> bool:
        if self._now() - queued.posted <= _ANSWER_SECONDS:
            return False
        return not queued.sent or queued.course.newest_step() > max(queued.at, queued.action.step) + _ANSWER_STEPS


def _answers(row: Mapping[str, Any], number: int) -> bool:
    return row.get("kind") == "action" and row.get("number") == number and row.get("state") in ("done", "refused")


def _near(course: Course) -> int:
    """The step before which all ranks of a training can have read a queued that is posted now; 0 is at once."""
    if len(course.recordings) == 1:
        return 0
    return step_ahead(course.newest_step(), course.step_seconds(), is_here=course.is_here())


def step_ahead(newest: int, step_seconds: float, *, is_here: bool) -> int:
    """A step far enough after the newest one for all ranks to read a queued action before it."""
    before = _AHEAD_SECONDS_HERE if is_here else _AHEAD_SECONDS
    return newest + max(_AHEAD_STEPS, math.ceil(before / step_seconds) if step_seconds > 0 else 0)
