"""Columns with NaN or Inf, sentinels, one value only, values far from all others, or beyond what their type can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from holdfast.data.checks.rows import MOST_NAMED, MOST_SHOWN, Place, by_file
from holdfast.data.column_summary import ColumnSummary
from holdfast.data.problem import Problem, problem

_FEWEST = 20  # rows, below which a column says little
_FAR = 1000.0  # times the distance between the 1st and the 99th percentile
_LIMITED = 3  # values at the edge of an integer type that are no chance


def column_problems(columns: Mapping[str, ColumnSummary], files: list[str], label: str | None) -> Iterator[Problem]:
    """Judge the columns of one split, which may lie in several files, each kind of fault once."""
    features = {name: column for name, column in columns.items() if name != label}
    for kind, judge in (
        ("non-finite-input", _non_finite),
        ("dtype-overflow", _overflow),
        ("column-sentinel", _sentinel),
        ("column-constant", _constant),
        ("column-extreme", _extreme),
    ):
        judged = columns if kind == "non-finite-input" else features
        cases = [(name, reason) for name, column in judged.items() if (reason := judge(column))]
        if cases and kind == "non-finite-input":
            yield _about_bad_rows(columns, cases, files)
        elif cases:
            yield problem(
                kind, count=len(cases), files=files, example=f"{', '.join(files[:3])}: {cases[0][0]} {cases[0][1]}",
                columns=[name for name, _ in cases], rows=[], shown=_farthest(columns, kind, [name for name, _ in cases]),
                cases=[f"{', '.join(files[:3])}: {name} {reason}" for name, reason in cases],
            )  # fmt: skip


def _about_bad_rows(columns: Mapping[str, ColumnSummary], cases: list[tuple[str, str]], files: list[str]) -> Problem:
    """`rows` are counted in the split; `in_files` are the same rows as they are counted in their files."""
    names = [name for name, _ in cases]
    bad = dict(sorted(pair for name in names for pair in zip(columns[name].bad_rows, columns[name].bad_places, strict=True)))
    rows = list(bad)[:MOST_NAMED]
    named = by_file(bad[row] for row in rows)
    file = columns[names[0]].bad_places[0][0]
    return problem(
        "non-finite-input", count=len(cases), files=list(named) if len(bad) < MOST_NAMED else files,
        example=f"{file}: {names[0]} {cases[0][1]}", columns=names, rows=rows, in_files=named,
        shown=[[bad[row]] for row in rows[:MOST_SHOWN]],
    )  # fmt: skip


def _farthest(columns: Mapping[str, ColumnSummary], kind: str, names: list[str]) -> list[list[Place]]:
    """A row for each column: sentinels, extremes and overflows are its lowest or its highest value, what lies farther out."""
    shown = []
    for column in (columns[name] for name in names if kind != "column-constant"):
        middle, values = column.values.median() or 0.0, column.values
        place = column.high_place if values.high - middle >= middle - values.low else column.low_place
        shown += [[place]] if place else []
    return shown


def _non_finite(summary: ColumnSummary) -> str:
    if not summary.is_number or (not summary.nan and not summary.inf):
        return ""
    counts = " and ".join(f"{count:,} {word}" for count, word in ((summary.nan, "NaN"), (summary.inf, "Inf")) if count)
    return f"has {counts} of {summary.count:,}, first in row {summary.bad_places[0][1]:,}"


def _overflow(summary: ColumnSummary) -> str:
    if not summary.is_number:
        return ""
    if summary.beyond_float32:
        return f"has {summary.beyond_float32:,} values that are Inf as float32"
    if summary.whole is not None and summary.at_limits >= _LIMITED and _piled_up(summary, summary.whole):
        return f"has {summary.at_limits:,} values at the limit of {summary.whole}"
    return ""


def _piled_up(summary: ColumnSummary, whole: np.dtype[Any]) -> bool:
    """Whether the limit of the type is met more often than chance: images and masks in uint8 are full of 0 and 255."""
    if whole == np.uint8:
        return False
    sample = summary.values.sample()
    inner = sample[(sample > np.iinfo(whole).min) & (sample < np.iinfo(whole).max)]
    return len(inner) > 0 and summary.at_limits > 3 * max(1.0, summary.count / max(len(np.unique(inner)), 1))


def _sentinel(summary: ColumnSummary) -> str:
    """A usual sentinel that lies apart from all other values, by more than their whole range."""
    if not summary.is_number:
        return ""
    span = summary.high_without - summary.low_without
    for value, count in sorted(summary.sentinels.items(), key=lambda item: -item[1]):
        away = max(summary.low_without - value, value - summary.high_without)
        if count >= 2 and span >= 0 and away > max(span, 1.0):
            others = f"all others lie in {summary.low_without:.4g} … {summary.high_without:.4g}"
            return f"is {value:g} in {count:,} of {summary.count:,} values, {others}"
    return ""


def _constant(summary: ColumnSummary) -> str:
    if summary.rows < _FEWEST or summary.distinct is None or len(summary.distinct) != 1 or summary.nan or summary.inf:
        return ""
    return f"is {next(iter(summary.distinct))!r:.40} in all {summary.rows:,} rows"


def _extreme(summary: ColumnSummary) -> str:
    if (
        not summary.is_number
        or summary.rows < _FEWEST
        or not summary.values.number
        or summary.sentinels
        or summary.beyond_float32
    ):
        return ""
    low, middle, high = np.quantile(summary.values.sample(), (0.01, 0.5, 0.99))
    usual = max(high - low, 1e-9 * abs(middle))
    lowest, highest = summary.values.low, summary.values.high
    if high == low or max(highest - high, low - lowest) <= _FAR * usual:
        return ""
    value = highest if highest - high >= low - lowest else lowest
    return f"has {value:.4g}, while 98 % of the values lie in {low:.4g} … {high:.4g}"
