"""Two or more runs on one metric: the value of each, the difference with its 95 % interval, and which settings differ.

One run each: the uncertainty is how much its evaluations scatter around a straight line. Several runs that differ only in the
number at the end of their names (`base-1`, `base-2`) are seeds of one configuration; then it is how much the seeds scatter. The
interval is Welch's: with a handful of values, resampling them (a bootstrap) gives intervals that are far too narrow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from holdfast.diagnosis.plot import plot
from holdfast.diagnosis.run_settings import settings_of, steps_of
from holdfast.errors import UsageError
from holdfast.probe.follow import Follower
from holdfast.signals.curves import Curve, Curves, Floats
from holdfast.signals.run_folder import RunFolder

_SEED = re.compile(r"[-_. ]?(?:seed|s)?[-_. ]?\d+$")
_RECENT, _LEAST = 0.5, 6  # of the evaluations, and at least so many: what the scatter is estimated from
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # Student's t, 97.5 %, for 1 to 10 degrees of freedom
_HIDDEN = {"project", "name", "seed", "--name", "--seed"}  # settings that differ between any two runs


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """One run: its curve of the metric along epochs or steps, its settings, and what it took."""

    name: str
    curve: Curve
    positions: Floats  # epochs, or steps where a run does not record epochs
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    ranks: int = 1

    def at(self, position: float) -> tuple[float, float]:
        """The newest evaluation at this position or before it, and where it was."""
        index = max(int(np.searchsorted(self.positions, position, side="right")) - 1, 0)
        return float(self.curve.values[index]), float(self.positions[index])

    @property
    def best(self) -> tuple[float, float]:
        """The best value, and where it was."""
        values = self.curve.values
        index = int(np.nanargmax(values) if self.curve.better == "higher" else np.nanargmin(values))
        return float(values[index]), float(self.positions[index])


class Gap(NamedTuple):
    """How much another configuration differs from the first, with the limits of the 95 % interval; None where unknown."""

    name: str
    difference: float
    low: float | None
    high: float | None
    is_better: bool | None  # None: no clear difference


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What `holdfast compare` shows. `groups` holds the runs of each configuration, the first one being the baseline."""

    metric: str
    better: str
    unit: str  # epoch or step
    position: float  # where values are compared: as far as every run has come
    groups: dict[str, list[ComparedRun]]
    gaps: list[Gap]
    settings: dict[str, list[Any]]  # name: value in each run, where they differ

    @property
    def runs(self) -> list[ComparedRun]:
        """All runs, in the order of their configurations."""
        return [run for runs in self.groups.values() for run in runs]

    @property
    def has_seeds(self) -> bool:
        """Whether some configuration was run more than once."""
        return any(len(runs) > 1 for runs in self.groups.values())


def compare(
    sources: Sequence[tuple[Curves, RunFolder | None]], *, metric: str | None = None, at_epoch: float | None = None
) -> Comparison:
    """Compare runs on one metric at the same epoch: at `at_epoch`, or as far as all of them have come."""
    if len(sources) < 2:
        raise UsageError("there is only one run to compare.", fix="name two or more runs or logs: holdfast compare first second")
    curves = _shared_curves([curves for curves, _ in sources], metric)
    by_epoch = all(curve.epochs is not None and np.isfinite(curve.epochs).all() for curve in curves)
    if at_epoch is not None and not by_epoch:
        raise UsageError("not every run records epochs.", fix="leave --at-epoch out: the runs are compared at the same step")
    runs = [_run(curve, run, run_curves, by_epoch) for curve, (run_curves, run) in zip(curves, sources, strict=True)]
    position = min(float(run.positions[-1]) for run in runs) if at_epoch is None else at_epoch
    if late := [run.name for run in runs if run.positions[0] > position]:
        raise UsageError(f"{late[0]} has no evaluation up to epoch {position:g}.", fix="compare at a later epoch")
    if short := [run for run in runs if run.positions[-1] < position]:
        last = f"{short[0].positions[-1]:g}"
        raise UsageError(f"{short[0].name} ends at epoch {last}.", fix=f"--at-epoch {last}, or leave it out")
    groups = _groups(runs)
    better = curves[0].better or "lower"
    first, *others = groups.items()
    gaps = [_gap(name, first[1], group, position, better) for name, group in others]
    return Comparison(curves[0].name, better, "epoch" if by_epoch else "step", position, groups, gaps, _differing(runs))


def drawing(comparison: Comparison) -> str:
    """The curves of all runs over each other, for a page."""
    curves = [
        Curve(run.name, np.round(run.positions).astype(np.int64), run.curve.values, better=comparison.better)
        for run in comparison.runs
    ]
    return plot(curves, title=comparison.metric, along=comparison.unit)


def _shared_curves(all_curves: Sequence[Curves], metric: str | None) -> list[Curve]:
    """The same series of every run: the named one, otherwise the first metric, validation loss or training loss that all have."""
    if metric is not None:
        return [_named(curves, metric) for curves in all_curves]
    for candidates in ([*curves.metrics, curves.val_loss, curves.train_loss] for curves in all_curves[:1]):
        for candidate in candidates:
            if candidate is None or candidate.better is None:
                continue
            found = [_find(curves, candidate.name) for curves in all_curves]
            if all(curve is not None and len(curve.finite()) for curve in found):
                return [curve.finite() for curve in found if curve is not None]
    names = [", ".join(curve.name for curve in curves.curves[:4]) or "nothing" for curves in all_curves[:2]]
    raise UsageError(
        f"the runs have no metric in common: {all_curves[0].name} has {names[0]}; {all_curves[1].name} has {names[1]}.",
        fix="name a metric that all of them have: --metric NAME",
    )


def _find(curves: Curves, name: str) -> Curve | None:
    return next((curve for curve in curves.curves if curve.name == name), None)


def _named(curves: Curves, name: str) -> Curve:
    curve = _find(curves, name) or _find(curves, f"val {name}") or _find(curves, name.replace("_", " "))
    if curve is None or not len(curve.finite()):
        names = ", ".join(curve.name for curve in curves.curves) or "nothing"
        raise UsageError(f"{curves.name} has no values of {name}.", fix=f"it has: {names}")
    if curve.better is None:
        raise UsageError(f"the name {name} does not say whether higher or lower is better.", fix="compare by another metric")
    return curve.finite()


def _run(curve: Curve, folder: RunFolder | None, curves: Curves, by_epoch: bool) -> ComparedRun:
    positions = curve.epochs if by_epoch and curve.epochs is not None else curve.steps.astype(np.float64)
    if folder is None:
        return ComparedRun(curves.name, curve, positions)
    info = folder.info()
    settings = settings_of(folder, steps=steps_of(folder)) | (info.get("settings") or {})
    ranks = int(info.get("world_size") or 1)
    return ComparedRun(curves.name, curve, positions, settings, _seconds(folder), ranks)


def _seconds(folder: RunFolder) -> float | None:
    """From the first step to the last."""
    recordings = folder.recordings()
    times = Follower(recordings[0].path, "steps", ("time",)).new_rows(1 << 30)["time"] if recordings else np.zeros(0)
    return float(times[-1] - times[0]) if len(times) > 1 else None


def _groups(runs: Sequence[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """Runs by configuration: names that differ in their last number belong together, unless that leaves only one."""
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault(_SEED.sub("", run.name) or run.name, []).append(run)
    if len(groups) < 2 or len(groups) == len(runs):
        return {_unique(run.name, runs, place): [run] for place, run in enumerate(runs)}
    return groups


def _unique(name: str, runs: Sequence[ComparedRun], place: int) -> str:
    """Two logs may have the same name: they are numbered then."""
    return f"{name} ({place + 1})" if sum(run.name == name for run in runs) > 1 else name


def _gap(name: str, baseline: list[ComparedRun], other: list[ComparedRun], position: float, better: str) -> Gap:
    ends = [np.array([run.at(position)[0] for run in group]) for group in (baseline, other)]
    difference = float(ends[1].mean() - ends[0].mean())
    if len(baseline) > 1 and len(other) > 1:
        scatters = [(float(values.var(ddof=1)) / len(values), len(values) - 1.0) for values in ends]
    elif len(baseline) == len(other) == 1:
        scatters = [_scatter(run, position) for run in (*baseline, *other)]
    else:
        return Gap(name, difference, None, None, None)  # one seed against several: how much that one would scatter is unknown
    if min(freedom for _, freedom in scatters) < 1:
        return Gap(name, difference, None, None, None)
    total = sum(variance for variance, _ in scatters)
    freedom = total**2 / max(sum(variance**2 / freedom for variance, freedom in scatters), 1e-300) if total else 1e9
    half = _student(freedom) * float(np.sqrt(total))
    is_better = ((difference > 0) == (better == "higher")) if abs(difference) > half else None
    return Gap(name, difference, difference - half, difference + half, is_better)


def _scatter(run: ComparedRun, position: float) -> tuple[float, float]:
    """The variance of one evaluation around a straight line through the last ones, and its degrees of freedom."""
    up_to = run.positions <= position
    values, positions = run.curve.values[up_to], run.positions[up_to]
    count = max(_LEAST, round(_RECENT * len(values)))
    values, positions = values[-count:], positions[-count:]
    if len(values) < _LEAST:
        return 0.0, 0.0
    rest = values - np.polynomial.Polynomial.fit(positions, values, 1)(positions)
    variance = float(rest @ rest) / (count - 2)
    alike = float(rest[1:] @ rest[:-1]) / max(float(rest @ rest), 1e-300)  # neighbours that are alike count for less
    return variance, max(1.0, (count - 2) * (1 - alike) / (1 + alike) if alike > 0 else count - 2.0)


def _student(freedom: float) -> float:
    return _T[int(freedom) - 1] if freedom < len(_T) + 1 else 1.96 + 2.7 / freedom


def _differing(runs: Sequence[ComparedRun]) -> dict[str, list[Any]]:
    """Settings whose values are not the same in all runs that have settings."""
    if any(not run.settings for run in runs):
        return {}
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in _HIDDEN)
    rows = {name: [run.settings.get(name) for run in runs] for name in names}
    return {name: values for name, values in rows.items() if len({str(value) for value in values}) > 1}


def as_row(comparison: Comparison) -> dict[str, Any]:
    """The comparison as `--json` gives it."""
    rows = [
        {"name": run.name, "best": run.best[0], "best_at": run.best[1], "last": float(run.curve.values[-1]),
         "value": run.at(comparison.position)[0], "value_at": run.at(comparison.position)[1],
         "seconds": run.seconds, "ranks": run.ranks}
        for run in comparison.runs
    ]  # fmt: skip
    return {
        "metric": comparison.metric,
        "better": comparison.better,
        "at": {comparison.unit: comparison.position},
        "runs": rows,
        "differences": [{**gap._asdict(), "words": sentence(comparison, gap)} for gap in comparison.gaps],
        "settings": comparison.settings,
    }


def sentence(comparison: Comparison, gap: Gap) -> str:
    """The difference from the first configuration in words."""
    first = next(iter(comparison.groups))
    at = f"{gap.name} against {first} at {comparison.unit} {comparison.position:,g}: {gap.difference:+.3g}"
    if gap.low is None or gap.high is None:
        return f"{at}; too few evaluations or seeds for an interval"
    verdict = {True: "better", False: "worse", None: "no clear difference"}[gap.is_better]
    return f"{at} (95 % interval {gap.low:+.2g} to {gap.high:+.2g}): {verdict}"
