"""The history of a run of Holdfast's own, from its tables and its journal, as `choose` takes it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.recovery.choosing.history import Change, History, Noted, Points, Series, Undone, lineage

if TYPE_CHECKING:
    from holdfast.probe.journal import Event
    from holdfast.signals.run_folder import Recording, RunFolder

_ROWS, _POINTS, _NEWEST = 400_000, 4000, 256  # rows that are read; points that are kept of them; the newest, all of them
_EVALUATIONS = 100_000
_ON_THE_SPOT = ("non-finite-loss", "non-finite-gradient", "non-finite-input")


def history_of_run(run: RunFolder) -> History:
    """What the tables and the journal of a run tell; of a run that was resumed, counted on from where it began."""
    from holdfast.probe.journal import Folding

    recording = _main_recording(run)
    rows = list(run.journal)
    events = [event for event in Folding(rows).events if _belongs(event, recording)]
    findings = [_noted(event) for event in events if event.kind == "finding" and event.step is not None]
    answered = [event for event in events if event.kind == "action" and event.state == "done" and event.code == "skip-batch"]
    history = History(
        **(_from_tables(recording.path) if recording is not None else {}),
        changes=tuple(_changes(rows, events)),
        findings=tuple(finding for finding in findings if not _was_answered(finding, answered) and not _came_back(finding, rows)),
        undone=tuple(_undone(events)),
        judged=True,
        end=_end(run),
        sources=(str(run.path),),
    )
    return history.later(_began_at(run, recording))


class Seen(NamedTuple):
    """The step at which a checkpoint was written; where it is not exact, the checkpoint's own word is better."""

    step: int
    exact: bool


def written_by(run: RunFolder) -> dict[Path, Seen]:
    """The checkpoints that the run was seen to write or to begin from and that are still its own, with their steps.

    The journal has not every save of a file that is written again and again. One that was written later, while the run was
    going, is the run's too: the table of steps says about how far it was. One that was written after its end is another run's.
    """
    from holdfast.signals.lineage import mark_of

    recording = _main_recording(run)
    before, name = _began_at(run, recording), recording.name if recording is not None else None
    saves: dict[Path, Seen] = {}
    marks: dict[Path, str | None] = {}
    for row in run.journal:
        event, step, path = row.get("event"), row.get("step"), row.get("diverted_to") or row.get("path")
        if row.get("kind") != "checkpoint" or not isinstance(path, str) or not isinstance(step, int):
            continue
        place = Path(path)
        if event in ("saved", "diverted") and row.get("recording", name) == name and place.exists():
            mark = marks.setdefault(place, mark_of(place) if "mark" in row else None)
            if row.get("mark") == mark:
                saves[place.resolve()] = Seen(before + step, exact=True)
            elif (later := _steps_until(run, recording, place.stat().st_mtime)) is not None:
                saves[place.resolve()] = Seen(before + later, exact=False)
        elif event == "resumed" and row.get("recording") == name and place.exists():
            saves.setdefault(place.resolve(), Seen(before, exact=True))
    return saves


def checkpoints_of(run: RunFolder) -> list[Path]:
    """All checkpoints of a run: what lies in its folder, and what its script was seen to write elsewhere."""
    from holdfast.checkpoints.formats.find import find_checkpoints

    inside = find_checkpoints(folder) if (folder := run.path / "checkpoints").is_dir() else []
    seen, written = {path.resolve() for path in inside}, written_by(run)
    whole = [path for path in written if written.keys().isdisjoint(path.parents)]  # a trainer's folder stands for its files
    return inside + [path for path in whole if path not in seen]


def _steps_until(run: RunFolder, recording: Recording | None, moment: float) -> int | None:
    """How many steps the run had made at a moment; None before its first and after its end."""
    from holdfast.supervisor.resume import steps_until

    ended = run.info().get("ended")
    if recording is None or (isinstance(ended, (int, float)) and moment > ended):
        return None
    return steps_until(recording, moment)


def run_that_wrote(paths: Sequence[Path]) -> RunFolder | None:
    """The run, here or where Holdfast's manifests say, that wrote some of these checkpoints; the newest of several."""
    from holdfast.errors import HoldfastError
    from holdfast.probe.target import runs_here
    from holdfast.signals.run_folder import RunFolder

    wanted = {path.resolve() for path in paths}
    for run in runs_here():
        if wanted & written_by(run).keys():
            return run
    for path in reversed(paths):
        named = _manifest_run(path)
        if named is not None and (named / "run.json").is_file():
            try:
                return RunFolder.open(named)
            except HoldfastError:
                continue
    return None


def _manifest_run(path: Path) -> Path | None:
    try:
        named = json.loads((path / "manifest.json").read_text(encoding="utf-8")).get("run")
    except (OSError, ValueError, AttributeError):
        return None
    return Path(named) if isinstance(named, str) else None


def _main_recording(run: RunFolder) -> Recording | None:
    """The newest training of the lowest rank that has made a step."""
    from holdfast.probe.rows import last_rows

    made = [recording for recording in run.recordings() if len(last_rows(recording.path, "steps", ("step",), 1)["step"])]
    return min(made, key=lambda recording: (-recording.part, recording.rank), default=None)


def _began_at(run: RunFolder, recording: Recording | None) -> int:
    """How many steps were made before this training, if it resumed from a checkpoint of a known run."""
    resumes = [row for row in run.journal if row.get("event") == "resumed" and isinstance(row.get("at"), int)
            and recording is not None and row.get("recording") == recording.name]  # fmt: skip
    return (
        int(resumes[-1]["at"]) - int(resumes[-1].get("step") or 0) if resumes else 0
    )  # one that counts on has them in its own count


def _belongs(event: Event, recording: Recording | None) -> bool:
    """Whether it is from the time of this training, and not of one before it in the same folder."""
    began = recording.info().get("started") if recording is not None and recording.part else None
    return not isinstance(began, (int, float)) or event.time is None or event.time >= began


def _came_back(noted: Noted, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether a resume that did not fit came back to where it was."""
    return noted.code == "resume-mismatch" and any(row.get("event") == "resume-watch" and row.get("came_back") for row in rows)


def _from_tables(folder: Path) -> dict[str, Any]:
    """Losses, learning rates, epochs and evaluations."""
    from holdfast.probe.rows import last_rows
    from holdfast.signals.view import measured

    rows = last_rows(folder, "steps", ("step", "epoch", "loss", "lr", "skipped"), _ROWS)
    steps = rows["step"]
    valid = measured(rows["loss"]) & (rows["skipped"] != 1)
    losses = list(zip(steps[valid].tolist(), rows["loss"][valid].tolist(), strict=True))
    rated = measured(rows["lr"])
    rates = list(zip(steps[rated].tolist(), rows["lr"][rated].tolist(), strict=True))
    counted = measured(rows["epoch"])
    epochs = dict(zip(rows["epoch"][counted].tolist(), steps[counted].tolist(), strict=True))
    return {
        "metrics": tuple(_metrics(folder)),
        "losses": _thinned(losses),
        "rates": tuple(point for index, point in enumerate(rates) if index == 0 or point[1] != rates[index - 1][1]),
        "epochs": tuple(sorted(epochs.items())),
        "last": int(steps[-1]) + 1 if len(steps) else None,
    }


def _metrics(folder: Path) -> list[Series]:
    """Every metric that was evaluated on held-out data."""
    from holdfast.probe.rows import last_rows
    from holdfast.signals.metric_direction import better

    columns = ("step", "split", "name", "value")
    rows = last_rows(folder, "evaluations", columns, _EVALUATIONS)
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for step, split, name, value in zip(*(rows[column] for column in columns), strict=True):
        if split != "train":
            curves.setdefault((str(split), str(name)), []).append((int(step), float(value)))
    ways = {key: better(key[1]) for key in curves}
    return [
        Series(_metric_name(*key), lineage(points), None if ways[key] is None else ways[key] == "lower")
        for key, points in curves.items()
    ]


def _metric_name(split: str, name: str) -> str:
    """`val/accuracy`; `val_acc` says its split already."""
    return name if name.lower().startswith(split.lower()) else f"{split}/{name}"


def _thinned(points: Sequence[tuple[int, float]]) -> Points:
    """Few enough to be looked at; the newest stay all."""
    older, newest = points[:-_NEWEST], points[-_NEWEST:]
    return (*older[:: max(1, len(older) // _POINTS)], *newest)


def _noted(event: Event) -> Noted:
    evidence = event.evidence
    onset = 0 if event.code == "resume-mismatch" else evidence.get("onset")
    about = f"{evidence['split']}/{evidence['metric']}" if {"split", "metric"} <= evidence.keys() else ""
    step = event.step or 0
    return Noted(step, event.code, event.severity, onset if isinstance(onset, int) else step, about)


def _was_answered(noted: Noted, skipped: Sequence[Event]) -> bool:
    """Whether the update was skipped, so that the weights never saw it."""
    return noted.code in _ON_THE_SPOT and any(event.step == noted.step for event in skipped)


def _changes(rows: Sequence[dict[str, Any]], events: Sequence[Event]) -> list[Change]:
    """What was changed on purpose, with the learning rate that goes with it; and a learning rate that jumped."""
    from holdfast.recovery.changes import propose

    changes = []
    for event in (row for row in events if row.kind == "change" and row.step is not None):
        setting = str(event.row.get("what", "a setting"))
        evidence = next((row["evidence"] for row in rows if _proposes(row, setting)), None)
        if evidence is None and (proposal := propose(setting)) is not None:
            evidence = proposal.as_row()
        factor, why = (evidence.get("factor"), str(evidence.get("why") or "")) if evidence else (None, "")
        changes.append(Change(event.step or 0, setting, float(factor) if isinstance(factor, (int, float)) else None, why))
    for event in events:
        jumped = event.evidence.get("lr_jumped_at")
        if event.kind == "finding" and isinstance(jumped, int):
            was, now = event.evidence.get("lr_before"), event.evidence.get("lr")
            changes.append(Change(jumped, f"the learning rate rose from {was} to {now}"))
    return changes


def _proposes(row: dict[str, Any], setting: str) -> bool:
    evidence = row.get("evidence")
    return (
        row.get("kind") == "diagnosis" and isinstance(evidence, dict) and evidence.get("what") == setting and "factor" in evidence
    )


def _undone(events: Sequence[Event]) -> list[Undone]:
    """The roll-backs that were done; one that went to the newest checkpoint on disk tells its step in words only."""
    spans = []
    for event in events:
        if not event.is_roll_back:
            continue
        at, to = event.row.get("at", event.step), event.settings.get("to", event.row.get("to"))
        if not isinstance(at, int):
            continue
        if not isinstance(to, int):
            match = re.search(r"step (\d+)", str(event.row.get("detail", "")))
            to = int(match[1]) if match else None
        if to is not None:
            spans.append(Undone(to, at))
    return spans


def _end(run: RunFolder) -> str:
    """How the run came to its end, as the end of a sentence that begins with "it"."""
    from holdfast.probe.health import exit_word
    from holdfast.probe.state import read_state

    state = read_state(run)
    if state.alive:
        return "is still running"
    if state.ended is None:
        return "ended without a trace: its process is gone"
    stopped = state.reason.partition("Holdfast stopped it: ")[2]
    if stopped:
        return f"was stopped by Holdfast: {stopped}"
    word = exit_word(state.exit_code)
    if word == "finished":
        return "finished normally"
    return f"was {word}" if word.startswith("killed") else f"ended with {word}"
