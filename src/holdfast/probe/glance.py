"""One look at a run for a screen: its state, the recent curves of one rank, the last evaluations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.probe.journal import Event, Folding
from holdfast.probe.rows import Column, last_rows
from holdfast.probe.state import RankState, RunState, read_state
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.view import measured

_HISTORY_ROWS = 4096
_EPOCH_ROWS = 1 << 17  # in which the start of an epoch is looked for
_EPOCHS = re.compile(r"(?:^|[\s._-])(?:num[-_]?(?:train[-_]?)?|max[-_]?)?epochs[ =](\d+)(?!\S)")
_CURVES = ("loss", "grad_norm", "lr", "step_seconds", "data_seconds", "host_rss", "gpu_allocated", "holdfast_seconds")


class Progress(NamedTuple):
    """How far an epoch is, by the length of the one before it; and the run, if its command names the epochs."""

    share: float
    epoch_seconds: float
    epochs: int | None = None
    run_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Glance:
    """What a screen shows. Curves are the rows of the last steps; unmeasured values are not in the curves."""

    state: RunState
    lead: RankState | None
    first_step: int | None = None
    curves: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    events: Sequence[Event] = ()
    progress: Progress | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything but the events as plain values, for the wire: who asks has the journal."""
        shown = {"lead": None if self.lead is None else self.state.ranks.index(self.lead), "first_step": self.first_step}
        curves = {name: values.tolist() for name, values in self.curves.items()}
        progress = None if self.progress is None else list(self.progress)
        return {
            "state": self.state.as_dict(), **shown, "curves": curves, "evaluations": self.evaluations, "progress": progress,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], events: Sequence[Event]) -> Glance:
        """The glance again."""
        state = RunState.from_dict(content["state"])
        lead = None if content["lead"] is None else state.ranks[content["lead"]]
        curves = {name: np.asarray(values, dtype=np.float64) for name, values in content["curves"].items()}
        progress = None if content.get("progress") is None else Progress(*content["progress"])
        return cls(state, lead, content["first_step"], curves, list(content["evaluations"]), events, progress)


def look(
    run: RunFolder,
    *,
    rows: int = _HISTORY_ROWS,
    curves: bool = True,
    journal: Sequence[dict[str, Any]] | None = None,
    events: Sequence[Event] | None = None,
) -> Glance:
    """Look at a run now. The curves are those of the lowest rank that has stepped, unless nobody wants them.

    `journal` and `events` are its rows and what they fold to, where the caller follows them anyway.
    """
    journal = list(run.journal) if journal is None else journal
    events = Folding(journal).events if events is None else events
    state = read_state(run, rows=journal, events=events)
    lead = next((rank for rank in state.ranks if rank.step is not None), state.ranks[0] if state.ranks else None)
    if lead is None:
        return Glance(state, None, events=events)
    folder = run.path / (f"rank-{lead.rank}" if lead.part == 0 else f"rank-{lead.rank}.{lead.part}")
    columns = last_rows(folder, "steps", ("step", "epoch", *(_CURVES if curves else ())), rows)
    first = int(columns["step"][0]) if len(columns["step"]) else None
    evaluations = _evaluations(last_rows(folder, "evaluations", _EVALUATION, 200))
    progress = _progress(folder, columns, lead.rate, run.info().get("command") or ()) if state.alive else None
    return Glance(state, lead, first, _curves(columns) if curves else {}, evaluations, events, progress)


def _curves(columns: dict[str, Column]) -> dict[str, npt.NDArray[np.float64]]:
    curves = {name: _measured(columns[name]) for name in _CURVES}
    curves["rate"] = _inverse(curves["step_seconds"])
    curves["data_share"] = _ratio(columns["data_seconds"], columns["step_seconds"])
    return curves


def _progress(folder: Path, columns: dict[str, Column], rate: float | None, command: Sequence[str]) -> Progress | None:
    """None in the first epoch: how long one is shows at its end. Of long epochs more rows are read."""
    steps, epochs = columns["step"], columns["epoch"]
    if not rate or not len(steps) or epochs[-1] < 0:
        return None
    starts = _epoch_starts(columns)
    if len(starts) < 2 and steps[0] > 0:
        starts = _epoch_starts(last_rows(folder, "steps", ("step", "epoch"), _EPOCH_ROWS))
    if len(starts) < 2:
        return None
    length, done = int(starts[-1] - starts[-2]), int(steps[-1] - starts[-1]) + 1
    left = max(0, length - done) / rate
    named = _EPOCHS.search(" ".join(map(str, command)))
    total = int(named[1]) if named is not None else None
    beyond = None if total is None else (total - 1 - int(epochs[-1])) * length / rate
    return Progress(min(1.0, done / length), left, total, left + beyond if beyond is not None and beyond >= 0 else None)


def _epoch_starts(columns: dict[str, Column]) -> Column:
    """The first step of each epoch that begins in these rows; the first of all steps begins one."""
    steps, epochs = columns["step"], columns["epoch"]
    starts: Column = steps[np.append(steps[:1] == 0, epochs[1:] > epochs[:-1])]
    return starts


_EVALUATION = ("step", "epoch", "split", "name", "value", "time", "printed")


def _measured(values: Column) -> npt.NDArray[np.float64]:
    return values[measured(values)].astype(np.float64)


def _inverse(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return 1.0 / seconds[seconds > 0]


def _ratio(part: Column, whole: Column) -> npt.NDArray[np.float64]:
    both = measured(part) & measured(whole) & (whole > 0)
    return np.asarray(part[both] / whole[both], dtype=np.float64)


def _evaluations(columns: dict[str, Column]) -> list[dict[str, Any]]:
    """Evaluations, oldest first: one entry per step and split, with its metrics by name; `printed` if all come from output."""
    by_step: dict[tuple[int, str], dict[str, Any]] = {}
    for step, epoch, split, name, value, at, printed in zip(*(columns[key] for key in _EVALUATION), strict=True):
        entry = by_step.setdefault((int(step), str(split)), {"step": int(step), "split": split, "time": float(at), "metrics": {}})
        entry["metrics"][str(name)] = float(value)
        entry["printed"] = bool(printed == 1) and entry.get("printed", True)
        entry["epoch"] = int(epoch) if epoch >= 0 else None
    return list(by_step.values())
