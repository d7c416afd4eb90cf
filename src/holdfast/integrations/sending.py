"""Sends a run to a tracker from what it recorded: a cursor in the run folder says how far, so nothing is lost or sent twice."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from holdfast.errors import HoldfastError, UsageError
from holdfast.integrations.tracker import End, Notice, Tracker
from holdfast.probe.journal import JournalReader, whole_number
from holdfast.signals.run_folder import Recording, RunFolder, replace_text
from holdfast.signals.tracker_names import SENT

_ROWS = 4096  # read at a time
_OWN = "holdfast-degraded"


def kind_of(name: str) -> type[Tracker]:
    """The tracker of that name; its package is imported here."""
    try:
        kind: type[Tracker] = importlib.import_module(f"holdfast.integrations.{name}").KIND
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("holdfast"):
            raise
        raise UsageError(
            f"{name} cannot be used: the package {error.name} is not installed.", fix=f"pip install {name}"
        ) from None
    return kind


class Cursor:
    """How far a run was sent to one tracker: a JSON file in `sent/` of the run, replaced in one move."""

    def __init__(self, run: RunFolder, name: str) -> None:
        self._path = run.path / SENT / f"{name}.json"
        self._path.parent.mkdir(exist_ok=True)
        self.content: dict[str, Any] = {}
        self.load()

    def load(self) -> None:
        """Read what was written down last."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            content = {}
        self.content = {"values": 0, "notices": 0, "journal": 0, "tables": {}, "codes": [], "state": {}, **content}

    def save(self, **changes: Any) -> None:
        """Write it down; raises OSError where the disk refuses."""
        self.content.update(changes)
        replace_text(self._path, json.dumps(self.content) + "\n")

    @contextlib.contextmanager
    def held(self, seconds: float = 0.0) -> Iterator[bool]:
        """Only one process sends: whether it is this one, after so many seconds at most."""
        deadline = time.monotonic() + seconds
        with self._path.with_suffix(".lock").open("w") as file:
            while not (ours := _locked(file)) and time.monotonic() < deadline:
                time.sleep(0.1)
            self.load()
            yield ours


def _locked(file: TextIO) -> bool:
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


class Sender:
    """Sends what a cursor says is left."""

    def __init__(self, run: RunFolder, kind: type[Tracker], cursor: Cursor) -> None:
        self._run, self._kind, self._cursor = run, kind, cursor
        self._tracker: Tracker | None = None

    def send(self) -> None:
        """All that was recorded so far. What it raises leaves the cursor where it was: call it again later."""
        for name, recording in self._recordings() if self._kind.takes_metrics else ():
            while self._send_rows(name, recording):
                pass
        self._send_notices()
        if self._cursor.content.get("error"):
            self._cursor.save(error=None)

    def finish(self) -> None:
        """The run is over, and all of it was sent: send the report, and close the tracker's run."""
        whole = self._kind.takes_metrics
        ended = self._run.info().get("ended") or True
        if self._cursor.content.get("finished") != ended and (self._run.recordings() or not whole):
            self._connected().finish(_end(self._run, whole=whole))
            self._cursor.save(finished=ended, error=None)

    def failed(self, error: Exception) -> str:
        """Note why nothing can be sent now, and let go of the connection; the reason in words."""
        message = (
            error.problem if isinstance(error, HoldfastError) else " ".join(f"{type(error).__name__}: {error}".split())[:300]
        )
        self.close()
        self._cursor.load()
        with contextlib.suppress(OSError):
            self._cursor.save(error=message)
        return message

    def close(self) -> None:
        """Let go of the connection."""
        tracker, self._tracker = self._tracker, None
        with contextlib.suppress(Exception):
            if tracker is not None:
                tracker.close()

    def _connected(self) -> Tracker:
        """The tracker, connected when there is something to send."""
        if self._tracker is None:
            self._tracker = self._kind(self._run, self._cursor.content["state"])
            self._cursor.save(address=self._tracker.address)
        return self._tracker

    def _recordings(self) -> Iterator[tuple[str, Recording]]:
        """The trainings of the first rank, each with the prefix of its metrics: the second one of a process has its own."""
        seen: set[Any] = set()
        recordings = self._run.recordings()
        for recording in recordings:
            if recording.rank == recordings[0].rank:
                pid = recording.info().get("pid")
                yield (f"training-{recording.part + 1}/" if pid in seen else ""), recording
                seen.add(pid)

    def _send_rows(self, prefix: str, recording: Recording) -> bool:
        """The next rows of both tables; False when there are no more."""
        from holdfast.probe.follow import Follower
        from holdfast.probe.metric_rows import STEPS, of_evaluations, of_steps

        place = self._cursor.content["tables"].get(recording.name) or {"kept": {}}
        kept = {name: list(last) for name, last in place["kept"].items()}
        steps = Follower(recording.path, "steps", ("step", "time", *STEPS))
        evaluations = Follower(recording.path, "evaluations", ("step", "time", "split", "name", "value"))
        for follower, name in ((steps, "steps"), (evaluations, "evaluations")):
            if name in place:
                follower.position = place[name]
        new_steps, new_evaluations = steps.new_rows(_ROWS), evaluations.new_rows(_ROWS)
        rows = [*of_steps(new_steps, kept, prefix), *of_evaluations(new_evaluations, prefix)]
        if rows:
            self._connected().metrics(rows)
        position = {"steps": steps.position, "evaluations": evaluations.position, "kept": kept}
        if position != place:
            self._cursor.content["tables"][recording.name] = position
            self._cursor.save(values=self._cursor.content["values"] + sum(len(row.values) for row in rows))
        return bool(len(new_steps["step"]) or len(new_evaluations["step"]))

    def _send_notices(self) -> None:
        reader = JournalReader(self._run.journal.path, self._cursor.content["journal"])
        codes = list(self._cursor.content["codes"])
        for row in reader.new_rows():
            notice = _notice(row)
            if notice is None or (notice.event == "finding" and notice.code in codes):
                continue
            codes = [*codes, notice.code] if notice.event == "finding" else []  # after a restart each is sent once more
            self._connected().notice(notice)
            self._cursor.save(codes=codes, notices=self._cursor.content["notices"] + 1)
        if reader.position != self._cursor.content["journal"]:
            self._cursor.save(journal=reader.position)


def _notice(row: dict[str, Any]) -> Notice | None:
    """What a row of the journal has to tell people; None if nothing."""
    step, when = whole_number(row.get("step")), row.get("time")
    at = float(when) if isinstance(when, (int, float)) and math.isfinite(when) else 0.0
    if row.get("kind") == "action" and row.get("action") == "restart" and row.get("state") == "done":
        return Notice("restart", "warning", str(row.get("because")), step, at, f"restarted: {row.get('detail')}")
    code, severity = str(row.get("code")), str(row.get("severity"))
    if row.get("kind") != "finding" or severity not in ("warning", "critical") or code == _OWN:
        return None
    from holdfast.diagnosis.curve_sentences import sentence_of
    from holdfast.probe.words import finding_words, plain

    evidence = row.get("evidence") or {}
    more = evidence.get("say") or sentence_of(code, step, evidence) or evidence.get("ended")
    where = f" at step {step:,}" if step is not None else ""
    return Notice("finding", severity, code, step, at, plain(f"{finding_words(code)}{where}{f': {more}' if more else ''}"))


def _end(run: RunFolder, *, whole: bool) -> End:
    from holdfast.diagnosis.run_verdict import verdict_on
    from holdfast.probe.health import exit_word

    info = run.info()
    word = exit_word(info.get("exit_code"))
    severity, text = ("info" if word in ("finished", "ended") else "critical"), word
    if word == "finished" and (verdict := verdict_on(run)) is not None:
        severity, text = ("info" if verdict.repaired else "warning"), verdict.text
    notice = Notice("end", severity, word, None, float(info.get("ended") or 0.0), f"run {run.name}: {text}")
    if not whole:
        return End(notice)
    from holdfast.diagnosis.run_settings import settings_of, steps_of

    return End(notice, _report(run), {**settings_of(run, steps=steps_of(run)), **(info.get("settings") or {})})


def _report(run: RunFolder) -> Path:
    """The page of the trainer, else that of `holdfast diagnose`."""
    path = run.path / "report.html"
    if not path.exists():
        from holdfast.diagnosis.of_run import check_up_run
        from holdfast.diagnosis.page import page

        path = run.path / SENT / "report.html"
        path.write_text(page([check_up_run(run)]), encoding="utf-8")
    return path
