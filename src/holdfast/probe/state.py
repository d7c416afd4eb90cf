"""The state of a run, seen from outside: which processes are alive, the step, speed and health of each rank.

Everything may be missing: a run that has not stepped yet, a folder that was deleted, a process of another machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.probe.alive import lives, same_process
from holdfast.probe.health import exit_word, journal_health, num_skipped, rank_health, run_health, stopped_because
from holdfast.probe.journal import Event, Folding
from holdfast.probe.pieces import open_pieces
from holdfast.probe.rows import Column, last_rows, newest_row
from holdfast.signals.many_ranks import EVERY_SECONDS, IN_FULL, MANY_RANKS
from holdfast.signals.nodes import FOLDER
from holdfast.signals.pulse import read_pulse
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.view import measured

_COLUMNS = (
    *("step", "epoch", "time", "loss", "lr", "grad_norm", "step_seconds", "data_seconds", "holdfast_seconds"),
    *("gpu_allocated", "host_rss"),
)
_BRIEF = ("step", "time", "loss", "step_seconds", "data_seconds")
_EVALUATION, _METRICS = ("step", "split", "name", "value"), 16
_WINDOW = 50
_PAUSE_SHOWS = 1.0  # seconds
_NUM_ACTIONS = 50
_STAYS_BAD = 3  # losses in a row: leaving these updates out does not help
_OTHER_HOST_SECONDS = 60.0  # a process of another machine counts as alive while its rows are younger than this


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One training of one rank; None where nothing is known."""

    rank: int
    part: int
    pid: int | None
    alive: bool
    growing: bool
    step: int | None
    epoch: int | None
    loss: float | None
    grad_norm: float | None
    lr: float | None
    rate: float | None
    age: float | None
    data_share: float | None
    budget: float | None
    gpu_memory: int | None
    host_memory: int | None
    num_skipped: int
    health: str
    reason: str
    evaluation: dict[str, Any] | None = None  # step, split, name and value of the newest metric
    host: str | None = None  # its machine


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run and its ranks, its findings, and the newest actions."""

    name: str
    folder: str
    alive: bool
    started: float | None
    ended: float | None
    exit_code: int | None
    command: list[str]
    health: str
    reason: str
    ranks: list[RankState]
    findings: list[dict[str, Any]]
    actions: list[dict[str, Any]]
    policy: str
    rules: dict[str, str]
    num_skipped: int
    roll_backs: int

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for `--json` and for the wire."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> RunState:
        """The state again, also from another version: unknown fields of a rank are ignored."""
        fields_of_rank = {field.name for field in fields(RankState)}
        ranks = [RankState(**{name: rank[name] for name in fields_of_rank & rank.keys()}) for rank in content["ranks"]]
        return cls(**{**{field.name: content[field.name] for field in fields(cls)}, "ranks": ranks})


def read_state(
    run: RunFolder,
    *,
    window: int = _WINDOW,
    now: float | None = None,
    rows: Sequence[dict[str, Any]] | None = None,
    events: Sequence[Event] | None = None,
) -> RunState:
    """Look at a run; rates and shares are over the last `window` steps of each rank.

    `rows` and `events` are the journal's, where the caller follows it anyway.
    """
    now = time.time() if now is None else now
    info = run.info()
    rows = list(run.journal) if rows is None else rows
    events = Folding(rows).events if events is None else events
    ended, code = _number(info.get("ended")), info.get("exit_code")
    over = exit_word(code) if ended is not None else None
    recordings = run.recordings() if run.path.is_dir() else []
    of_rank = {rank: list(group) for rank, group in groupby(recordings, key=lambda recording: recording.rank)}
    many = len(of_rank) > MANY_RANKS
    ranks = [
        _brief_state(recording, now, over, events)
        if many and recording.rank >= IN_FULL
        else _rank_state(recording, window, now, over, events)
        for recording in recordings
        if not _superseded(recording, of_rank[recording.rank])
    ]
    alive = ended is None and (any(rank.alive for rank in ranks) or _supervised(info) or _led_elsewhere(run, now))
    health, reason = run_health(run.path.is_dir(), alive, over, [(rank.health, rank.reason) for rank in ranks])
    return RunState(
        name=run.name,
        folder=str(run.path),
        alive=alive,
        started=_number(info.get("started")),
        ended=ended,
        exit_code=code if isinstance(code, int) else None,
        command=[str(word) for word in info.get("command") or []],
        health=health,
        reason=reason or ("" if alive else stopped_because(events)),
        ranks=ranks,
        findings=[row for row in rows if row.get("kind") == "finding"],
        actions=[row for row in rows if row.get("kind") == "action"][-_NUM_ACTIONS:],
        policy=str(info.get("policy") or "observe"),
        rules=_rules(info.get("rules")),
        num_skipped=num_skipped(events),
        roll_backs=sum(event.is_roll_back for event in events),
    )


def _supervised(info: Mapping[str, Any]) -> bool:
    """Whether somebody outside still runs it: between two attempts only the supervisor is there."""
    outside = (info.get("pid"), info.get("supervisor"))
    return any(same_process(pid, info.get("started"), info.get("host")) for pid in outside if pid)


def _led_elsewhere(run: RunFolder, now: float) -> bool:
    """Whether the first node of several, on another machine, has been at work lately."""
    try:
        return now - (run.path / FOLDER / "0.json").stat().st_mtime < _OTHER_HOST_SECONDS
    except OSError:
        return False


def _superseded(recording: Recording, others: list[Recording]) -> bool:
    """Whether a later training of the same rank took its place: in the same process, or after its process ended."""
    later = [other for other in others if other.part > recording.part]
    if not later:
        return False
    info = recording.info()
    if any(other.info().get("pid") == info.get("pid") for other in later):
        return True
    return not lives(info)


def _rank_state(recording: Recording, window: int, now: float, over: str | None, events: Sequence[Event]) -> RankState:
    rows = last_rows(recording.path, "steps", _COLUMNS, window)
    figures = _figures(rows, now)
    growing = figures["step"] is None or open_pieces(recording.path / "steps").growing
    state = _judged(recording, figures, events, growing=growing, usual=_usual(rows), over=over, now=now, recent=rows)
    state = replace(state, evaluation=_newest_evaluation(recording.path), host=recording.info().get("host"))
    silent = state.alive and growing and (state.age or 0.0) > _PAUSE_SHOWS
    if silent and (pulse := read_pulse(recording)) and pulse.phase == "paused":
        state = replace(state, health="paused", reason="holdfast continue resumes it")
    return state


def _brief_state(recording: Recording, now: float, over: str | None, events: Sequence[Event]) -> RankState:
    """The same of one of thousands, from its newest row alone."""
    row = newest_row(recording.path, "steps", _BRIEF)
    values = {name: None if row is None else _last({name: row.values[name]}, name) for name in _BRIEF}
    seconds, age = values["step_seconds"], None if values["time"] is None else max(0.0, now - values["time"])
    figures: dict[str, Any] = dict.fromkeys(("epoch", "grad_norm", "lr", "budget", "gpu_memory", "host_memory"))
    figures |= {"step": values["step"], "loss": values["loss"], "age": age, "rate": 1.0 / seconds if seconds else None}
    figures["data_share"] = values["data_seconds"] / seconds if seconds and values["data_seconds"] is not None else None
    usual = max(seconds, EVERY_SECONDS / 10) if seconds else None
    return _judged(recording, figures, events, growing=row is None or not row.sealed, usual=usual, over=over, now=now)


def _judged(
    recording: Recording, figures: Mapping[str, Any], events: Sequence[Event], *, growing: bool, usual: float | None,
    over: str | None, now: float, recent: Mapping[str, Column] | None = None,
) -> RankState:  # fmt: skip
    """A rank with its health; `recent` rows tell whether a loss that is not finite was skipped."""
    info = recording.info()
    own = _events_of(recording.rank, info.get("started"), events)
    there, age = lives(info), figures["age"]
    alive = (age is not None and age < _OTHER_HOST_SECONDS if there is None else there) and over is None
    health, reason = rank_health(
        alive=alive,
        growing=growing,
        over=over,
        step=figures["step"],
        loss=None if recent is not None and _was_skipped(recent, own) else figures["loss"],
        age=age,
        usual=usual,
        degraded=_degraded(events, recording.rank),
        journal=journal_health(own, step=figures["step"], now=now),
    )
    return RankState(
        rank=recording.rank,
        part=recording.part,
        pid=info.get("pid"),
        alive=alive,
        growing=growing,
        num_skipped=num_skipped(own),
        health=health,
        reason=reason,
        **figures,
    )


def _newest_evaluation(folder: Path) -> dict[str, Any] | None:
    """The metric that says most of the newest evaluation: of held-out data before training data, an accuracy before a loss."""
    columns = last_rows(folder, "evaluations", _EVALUATION, _METRICS)
    rows = [dict(zip(_EVALUATION, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    newest = [row for row in rows if row["step"] == rows[-1]["step"]]
    if not newest:
        return None
    best = min(newest, key=lambda row: (row["split"] == "train", "loss" in str(row["name"])))
    return {**best, "step": int(best["step"]), "value": float(best["value"])}


def _figures(rows: Mapping[str, Column], now: float) -> dict[str, Any]:
    time_of_last = _last(rows, "time")
    return {
        "step": _last(rows, "step"),
        "epoch": _last(rows, "epoch"),
        "loss": _last(rows, "loss"),
        "grad_norm": _last(rows, "grad_norm"),
        "lr": _last(rows, "lr"),
        "rate": _rate(rows["step"], rows["time"]),
        "age": None if time_of_last is None else max(0.0, now - time_of_last),
        "data_share": _share(rows["data_seconds"], rows["step_seconds"]),
        "budget": _share(rows["holdfast_seconds"], rows["step_seconds"]),
        "gpu_memory": _last(rows, "gpu_allocated"),
        "host_memory": _last(rows, "host_rss"),
    }


def _last(rows: Mapping[str, Column], name: str) -> Any:
    """The newest value that was measured; a loss may come a step late, a sampled norm many."""
    values = rows[name][measured(rows[name])]
    return values[-1].item() if len(values) else None


def _median(values: Column) -> float | None:
    valid = values[measured(values)]
    return float(np.median(valid)) if len(valid) else None


def _usual(rows: Mapping[str, Column]) -> float | None:
    """How long a step takes; one of thousands of ranks writes a row in half a minute, however short its steps are."""
    step = _median(rows["step_seconds"])
    apart = np.median(np.diff(rows["time"])) if len(rows["time"]) > 1 else 0.0
    return None if step is None else max(step, float(apart) / 10)


def _rate(steps: Column, times: Column) -> float | None:
    if len(times) < 2 or times[-1] <= times[0] or steps[-1] <= steps[0]:
        return None
    return float((steps[-1] - steps[0]) / (times[-1] - times[0]))


def _share(part: Column, whole: Column) -> float | None:
    """Part of the whole over the rows that have both."""
    both = measured(part) & measured(whole)
    total = float(whole[both].sum())
    return float(part[both].sum()) / total if total > 0 else None


def _events_of(rank: int, since: Any, events: Sequence[Event]) -> list[Event]:
    """What concerns this training of the rank, and not one before it."""
    begin = _number(since) or 0.0
    return [event for event in events if event.concerns(rank) and (event.time is None or event.time >= begin - 1.0)]


def _was_skipped(rows: Mapping[str, Column], events: Sequence[Event]) -> bool:
    """Whether the newest losses are not finite, only just, and their updates never reached the weights."""
    valid = measured(rows["loss"])
    steps, losses = rows["step"][valid][-_STAYS_BAD:], rows["loss"][valid][-_STAYS_BAD:]
    bad = {int(step) for step, loss in zip(steps, losses, strict=True) if not np.isfinite(loss)}
    skipped = {event.step for event in events if event.kind == "action" and event.code == "skip-batch" and event.state == "done"}
    return 0 < len(bad) < _STAYS_BAD and bad <= skipped


def _degraded(events: Sequence[Event], rank: int) -> str | None:
    for event in events:
        if event.kind == "finding" and event.code == "holdfast-degraded" and event.severity != "info" and event.concerns(rank):
            return str(event.evidence.get("what") or event.evidence.get("error") or "see the journal")
    return None


def _rules(value: Any) -> dict[str, str]:
    """Policies of single rules, whether run.json holds them as an object or as `code=policy,...`."""
    if isinstance(value, dict):
        return {str(code): str(policy) for code, policy in value.items()}
    pairs = (pair.partition("=") for pair in value.split(",")) if isinstance(value, str) else ()
    return {code.strip(): policy.strip() for code, _, policy in pairs if policy}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
