"""Where `holdfast validate` draws its lines, and what other lines would do: false alarms on sound data, faults that are found.

python benchmarks/data_thresholds.py      half a minute; fails where a line raises a false alarm or misses a fault

- `column-extreme`: columns of scikit-learn's own data sets, and drawn ones with tails as measurements have them (log-normal,
  Student's t, Pareto, counts), against columns in which one value got another unit or lost its decimal point.
- `preprocessing-mismatch`: the same data sets, split at random, against splits of which one was scaled otherwise.
- `class-imbalance`: digits of which one class is thinned out. How well is it still recognised?
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from holdfast.data.checks import classes as split_statistics
from holdfast.data.checks import columns
from holdfast.data.column_summary import ColumnSummary
from holdfast.data.columns import Column

Numbers = npt.NDArray[np.float64]
FAR, SHIFT, RARER = (10, 30, 100, 300, 1000, 3000, 10_000), (0.25, 0.5, 1.0, 2.0, 4.0), (1, 2, 5, 10, 20, 50)
SETS = ("iris", "wine", "breast_cancer", "diabetes", "digits", "linnerud")
UNITS = (1e3, 1e4, 1e6)  # by which a value is too large: a gram in milligrams, metres in micrometres, …


def real_columns() -> Iterator[tuple[str, Numbers]]:
    """Columns that people train on."""
    from sklearn import datasets

    for name in SETS:
        data = getattr(datasets, f"load_{name}")()["data"].astype(np.float64)
        for number, column in enumerate(data.T):
            if len(np.unique(column)) > 1:
                yield f"{name}/{number}", column


def drawn_columns(seed: int) -> Iterator[tuple[str, Numbers]]:
    """Columns with tails."""
    chance = np.random.default_rng(seed)
    for rows in (200, 10_000, 200_000):
        yield "normal", chance.normal(size=rows)
        yield "exponential", chance.exponential(size=rows)
        for sigma in (1.0, 2.0):
            yield f"log-normal, {sigma:g}", chance.lognormal(sigma=sigma, size=rows)
        for freedom in (2.0, 3.0):
            yield f"Student's t, {freedom:g}", chance.standard_t(freedom, size=rows)
        yield "Pareto, 2", chance.pareto(2.0, size=rows)
        yield "counts", chance.poisson(0.5, size=rows).astype(np.float64)


def summary(values: Numbers) -> ColumnSummary:
    """What validate knows of a column."""
    found = ColumnSummary(values.dtype)
    found.add(Column(values))
    return found


def extremes() -> bool:
    """Sweep how far out a value must lie."""
    sound = [summary(values) for _, values in real_columns()]
    sound += [summary(values) for seed in range(10) for _, values in drawn_columns(seed)]
    faulty: dict[float, list[ColumnSummary]] = {}
    for unit in UNITS:
        for name, values in real_columns():
            if not name.startswith(("digits", "linnerud")):  # counts of pixels, without a unit; twenty rows, all of them usual
                wrong = values.copy()
                wrong[len(wrong) // 3] = unit * (abs(wrong).max() or 1.0)
                faulty.setdefault(unit, []).append(summary(wrong))
    print(f"column-extreme: {len(sound):,} sound columns; one value in {len(faulty[UNITS[0]])} columns times …")
    print(f"  {'line':>8}  false alarms  " + "  ".join(f"{f'x {unit:,.0f}':>11}" for unit in UNITS))
    well = True
    for far in FAR:
        with mock.patch.object(columns, "_FAR", float(far)):
            alarms = sum(bool(columns._extreme(one)) for one in sound)
            found = {unit: sum(bool(columns._extreme(one)) for one in some) for unit, some in faulty.items()}
        ours = far == columns._FAR
        if ours:
            well = not alarms and found[UNITS[-1]] == len(faulty[UNITS[-1]])
        print(f"  {far:>8,}  {alarms:>12}  " + "  ".join(f"{found[u]:>4} of {len(faulty[u]):>3}" for u in UNITS) + _mark(ours))
    return well


def splits() -> bool:
    """Sweep how far apart the means of two splits may lie."""
    sound, faulty = [], []
    for name in SETS[:-1]:  # the last has four rows in its smaller part: too few to judge
        for seed in range(100):
            pairs = [(train, other) for train, other in _split(name, seed) if len(np.unique(train)) > 1]
            sound.append([(summary(train).usual_spread, summary(other).usual_spread) for train, other in pairs])
            scaled = [(train, (other - train.mean()) / train.std()) for train, other in pairs]
            faulty.append([(summary(train).usual_spread, summary(other).usual_spread) for train, other in scaled])
    print(f"preprocessing-mismatch: {len(sound)} random splits of data sets, and the same with one part normalised")
    print(f"  {'line':>8}  false alarms  found")
    well = True
    for shift in SHIFT:
        with mock.patch.object(split_statistics, "_SHIFT", shift):
            alarms = sum(any(split_statistics._difference(*pair) for pair in pairs) for pairs in sound)
            found = sum(any(split_statistics._difference(*pair) for pair in pairs) for pairs in faulty)
        ours = shift == split_statistics._SHIFT
        if ours:
            well = not alarms and found == len(faulty)
        print(f"  {shift:>8.2f}  {alarms:>12}  {found:>4} of {len(faulty)}{_mark(ours)}")
    return well


def _split(name: str, seed: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Each column of a data set, four fifths and one fifth of it."""
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")()["data"].astype(np.float64)
    order = np.random.default_rng(seed).permutation(len(data))
    for column in data.T:
        yield column[order[: len(data) * 4 // 5]], column[order[len(data) * 4 // 5 :]]


def imbalance() -> bool:
    """How much is lost of a class that is so many times as rare as the others."""
    print("class-imbalance: digits, the 8 so many times as rare as the others in training; five seeds")
    print(f"  {'rarer':>8}  recall of the 8  of the others")
    recalls: dict[int, float] = {}
    for rarer in RARER:
        found = np.array([_recalls(rarer, seed) for seed in range(5)])
        recalls[rarer] = float(found[:, 0].mean())
        print(f"  {rarer:>8}  {found[:, 0].mean():>15.2f}  {found[:, 1].mean():>13.2f}")
    return recalls[20] < 0.3 * recalls[1]


def _recalls(rarer: int, seed: int) -> tuple[float, float]:
    from sklearn import datasets, linear_model, model_selection

    x, y = datasets.load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = model_selection.train_test_split(x / 16, y, test_size=0.3, random_state=seed, stratify=y)
    rare = np.flatnonzero(train_y == 8)
    kept = np.concatenate([np.flatnonzero(train_y != 8), rare[: max(1, len(rare) // rarer)]])
    model: Any = linear_model.LogisticRegression(max_iter=300).fit(train_x[kept], train_y[kept])
    right = model.predict(test_x) == test_y
    return float(right[test_y == 8].mean()), float(right[test_y != 8].mean())


def _mark(ours: bool) -> str:
    return "   <- the line" if ours else ""


def main() -> int:
    """All three; 1 if a line is in the wrong place."""
    return 0 if all([extremes(), splits(), imbalance()]) else 1


if __name__ == "__main__":
    sys.exit(main())
