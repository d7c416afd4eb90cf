"""The fields of a run's batches as they were looked at: which are inputs, which are labels."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.signals.run_view import InputSample, RunView

_LABELS = ("labels", "label", "targets", "target", "y")


def fields_of(samples: Iterable[InputSample]) -> dict[str, list[InputSample]]:
    """The samples of each field, in the order in which a batch has them."""
    found: dict[str, list[InputSample]] = {}
    for one in samples:
        found.setdefault(one.field, []).append(one)
    return found


def of_split(run: RunView, split: str) -> list[InputSample]:
    """What was looked at to learn from (`train`), or of evaluations on other data (`val`)."""
    return [one for one in run.inputs if one.split == split and (split == "train" or one.source > 0)]


def label_field(fields: Iterable[str]) -> str | None:
    """The field that holds the answers: called so, or the last of several."""
    names = list(fields)
    called = [name for name in names if name.rpartition(".")[2].strip("'") in _LABELS]
    return called[0] if called else names[-1] if len(names) > 1 else None
