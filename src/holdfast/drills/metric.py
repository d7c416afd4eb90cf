"""The number that says how good a training became: what it measured on held-out data, what it printed, or its last losses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from holdfast.detectors.levels import usual_of_falling
from holdfast.logs.roles import role_of, words_of
from holdfast.logs.text_file import read_text
from holdfast.probe.follow import Follower
from holdfast.signals.curves import HELD_OUT
from holdfast.signals.metric_direction import metric_name
from holdfast.signals.run_folder import Recording, RunFolder
from holdfast.signals.view import measured

LAST_LOSSES = "train loss"
_ALL = 1 << 40
_SEVERAL_GUESSES = re.compile(r"(?:top|acc|accuracy|hits?)[-_@ ]?(?:[2-9]|\d\d)", re.IGNORECASE)
_FIRST = 5  # losses, of which the median is what a training began with
_CHANCE = 1e-4  # of the first loss: what is less tells nothing
_LAST = 20  # losses, or as many as a twentieth of the run
_EVALUATIONS = 5  # of which it shows how much a metric goes up and down by chance
_COMPARED, _SOON, _SIGMAS = 64, 32, 4.0  # losses before a fault, and soon after it, that differ by no more than chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A number, whether more of it is better, and how far it is from what it would be without chance (where that is known)."""

    name: str
    value: float
    higher: bool
    noise: float = 0.0
    times: int = 1  # that it was evaluated


def metric_of(run: RunFolder | None, output: str, name: str | None = None) -> Measured | None:
    """The last value of the metric of that name; without a name, of the best that there is.

    What is better when it is high (an accuracy) says most: evaluated, or else printed. Then a held-out loss, then what was
    learned from. What is evaluated again and again comes before what is said once, at the end; an accuracy of the first guess
    before one of the first five.
    """
    recording = _last(run)
    evaluated = list(_evaluated(recording)) if recording is not None else []
    printed = list(_printed(output))
    if name == LAST_LOSSES and recording is not None:
        return _last_losses(recording)
    chosen = _chosen(printed, evaluated, name)
    if chosen is None and name is None:
        return _last_losses(recording) if recording is not None else next(iter(printed[::-1]), None)
    if chosen is None or chosen.higher or recording is None:
        return chosen
    return replace(chosen, noise=max(chosen.noise, _CHANCE / 2 * _first_loss(recording)))


def _chosen(printed: list[Measured], evaluated: list[Measured], name: str | None) -> Measured | None:
    if name is not None:
        wanted = set(words_of(name))
        named = [metric for metric in (*printed, *evaluated) if wanted <= set(words_of(metric.name))]
        exactly = [metric for metric in named if metric.name == name]
        return next(reversed(exactly or named), None)
    for candidates in (
        [metric for metric in evaluated if metric.higher and _held_out(metric)],
        [metric for metric in printed if metric.higher],
        [metric for metric in evaluated if metric.higher],
        [metric for metric in (*printed, *evaluated) if _held_out(metric)],
    ):
        if candidates:
            return max(reversed(candidates), key=lambda metric: (metric.times, not _SEVERAL_GUESSES.search(metric.name)))
    return None


def rise_of_loss(run: RunFolder | None, step: int, *, lasting: bool = False) -> float | None:
    """How far a loss rose after a step above the usual ones before it, as a share of what had been learned until then.

    None if nothing had been learned, or too little was recorded. A loss that is not finite rose without limit. It did not rise
    if no loss soon after the step is higher than those before it by more than chance; or the middle of all, for what lasts.
    """
    recording = _last(run)
    if recording is None:
        return None
    rows = Follower(recording.path, "steps", ("step", "loss")).new_rows(_ALL)
    before, after = (rows["loss"][chosen].astype(np.float64) for chosen in (rows["step"] < step, rows["step"] >= step))
    before = before[np.isfinite(before)]
    if len(before) < 2 * _LAST or not len(after):
        return None
    normal = usual_of_falling(before[-_COMPARED:])
    if not np.isfinite(after).all():
        return float("inf")
    highest = np.median(after) if lasting else np.max(after[:_SOON])
    if highest <= max(np.max(before[-_COMPARED:]), normal.value + _SIGMAS * normal.noise):
        return 0.0
    usual, learned = float(np.median(before[-_LAST:])), float(np.median(before[:_FIRST]) - np.median(before[-_LAST:]))
    return float(np.max(after) - usual) / learned if learned > 0 else None


def usual_step_seconds(run: RunFolder | None) -> float:
    """The middle of what the steps of a run took; 0 if nothing was recorded."""
    recording = _last(run)
    seconds = Follower(recording.path, "steps", ("step_seconds",)).new_rows(_ALL)["step_seconds"] if recording is not None else ()
    taken = np.asarray(seconds, np.float64)
    return float(np.median(taken[np.isfinite(taken)])) if np.isfinite(taken).any() else 0.0


def _last(run: RunFolder | None) -> Recording | None:
    """The newest training of the first rank."""
    recordings = run.recordings() if run is not None else []
    return max(
        (recording for recording in recordings if recording.rank == recordings[0].rank),
        key=lambda recording: recording.part,
        default=None,
    )


def _held_out(metric: Measured) -> bool:
    return role_of(metric.name).split in HELD_OUT


def _evaluated(recording: Recording) -> Iterator[Measured]:
    """The last value of each metric of each split that the run's tables hold, `val accuracy`, in the order of their steps."""
    rows = Follower(recording.path, "evaluations", ("split", "name", "value")).new_rows(_ALL)
    names = (metric_name(str(split), str(name)) for split, name in zip(rows["split"], rows["name"], strict=True))
    return _last_of_each(zip(names, map(float, rows["value"]), strict=True))


def _printed(output: str) -> Iterator[Measured]:
    """The last number printed under each name that is a loss or a metric."""
    pairs = (pair for row in read_text(output.splitlines()) for pair in row.items())
    found = (metric for metric in _last_of_each(pairs) if role_of(metric.name).role in ("loss", "metric"))
    return (replace(metric, times=1) for metric in found)  # its last line says most


def _last_of_each(pairs: Iterable[tuple[str, float]]) -> Iterator[Measured]:
    values: dict[str, list[float]] = {}
    for name, value in pairs:
        values[name] = [*values.pop(name, ()), value]  # the newest name comes last
    for name, series in values.items():
        if (better := role_of(name).better) is not None:
            yield Measured(name=name, value=series[-1], higher=better == "higher", noise=_scatter(series), times=len(series))


def _scatter(series: list[float]) -> float:
    """How much a metric goes up and down from one evaluation to the next, in the second half of a run, as a deviation."""
    late = np.asarray(series[len(series) // 2 :])
    if len(late) < _EVALUATIONS or not np.isfinite(late).all():
        return 0.0
    moves = np.diff(late)
    return float(1.4826 * np.median(np.abs(moves - np.median(moves))) / np.sqrt(2.0))


def _first_loss(recording: Recording) -> float:
    losses = Follower(recording.path, "steps", ("loss",)).new_rows(_FIRST)["loss"]
    return abs(float(np.median(losses))) if len(losses) and np.isfinite(losses).all() else 0.0


def _last_losses(recording: Recording) -> Measured | None:
    """The mean of the last losses that were learned from."""
    losses = Follower(recording.path, "steps", ("loss",)).new_rows(_ALL)["loss"]
    recorded = losses[measured(losses)].astype(np.float64)
    if not len(recorded):
        return None
    last = recorded[-max(_LAST, len(recorded) // 20) :]
    with np.errstate(invalid="ignore", over="ignore"):
        return Measured(name=LAST_LOSSES, value=float(last.mean()), higher=False, noise=float(last.std() / np.sqrt(len(last))))
