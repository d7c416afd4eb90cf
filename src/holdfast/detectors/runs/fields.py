"""The fields of a run's batches as they were looked at: which are inputs, which are labels."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.signals.run_view import InputSample, RunView

_LABELS = ("labels", "label", "targets", "target", "y")
_INDICES = ("index", "indices", "idx", "id", "ids")


def fields_of(samples: Iterable[InputSample]) -> dict[str, list[InputSample]]:
    """The samples of each field, in the order in which a batch has them; a number that only tells samples apart is skipped."""
    by_name: dict[str, list[InputSample]] = {}
    for sample in samples:
        by_name.setdefault(sample.field, []).append(sample)
    single = {name: rows for name, rows in by_name.items() if all(row.known < 0 for row in rows)}
    some_repeat = any(row.distinct < row.samples for rows in single.values() for row in rows)
    return {name: rows for name, rows in by_name.items() if not (some_repeat and name in single and _is_index(name, rows))}


def _is_index(name: str, rows: list[InputSample]) -> bool:
    """Whether a field of single numbers is the place of each sample in the data set: called so, or no number comes twice."""
    return _last_name(name) in _INDICES or all(row.distinct == row.samples > 1 for row in rows)


def _last_name(field: str) -> str:
    return field.rpartition(".")[2].strip("'")


def of_split(run: RunView, split: str) -> list[InputSample]:
    """What was looked at to learn from (`train`), or of evaluations on other data (`val`)."""
    return [one for one in run.inputs if one.split == split and (split == "train" or one.source > 0)]


def label_field(fields: Iterable[str]) -> str | None:
    """The field that holds the answers: called so, or the last of several."""
    names = list(fields)
    called = [name for name in names if _last_name(name) in _LABELS]
    return called[0] if called else names[-1] if len(names) > 1 else None
