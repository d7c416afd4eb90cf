"""Metrics in what a script prints: `val_acc 0.94`, `Accuracy: 352/357`, `mAP50: 0.61`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.logs.roles import role_of, words_of
from holdfast.logs.text_file import read_text
from holdfast.signals.curves import HELD_OUT

_SENTENCE = re.compile(  # `Accuracy of the network on the 10000 test images: 55 %`
    r"\b(accuracy|loss|error)\b of [\w ]*\bon [\w ]*\b(train|val|test)\w*\b[\w ]*?(?::| is\b| was\b|=)\s*(?=[\d.])", re.IGNORECASE
)
_ROUNDED = 0.006  # what is printed with two digits, relative to what was measured


class Metric(NamedTuple):
    """One metric of one evaluation, as it was printed."""

    name: str
    split: str | None  # None where no line says it
    value: float
    back: int = 0  # how many evaluations later the lines end: 0 for the newest
    with_held_out: bool = False  # printed together with a metric of held-out data
    epoch: int | None = None  # as the line counts it


def metrics_in(lines: Iterable[str]) -> list[Metric]:
    """The metrics in some lines, and the losses of held-out data, oldest first. A training loss is a matter of the steps.

    Output that comes in blocks holds several evaluations: the epochs that the lines name say how far they are apart, else the
    order. A number that comes once, and before others that come again, is a setting, unless it is named for held-out data.
    """
    plain = (_SENTENCE.sub(lambda match: f"{match[2]} {match[1]}: ".lower(), line) for line in lines)
    rows = [(row, list(_of_row(row))) for row in read_text(plain)]
    newest = next((row["epoch"] for row, _ in reversed(rows) if "epoch" in row), None)
    times = Counter(metric.name for _, metrics in rows for metric in metrics)
    later: Counter[str] = Counter()
    printed: list[Metric] = []
    for row, metrics in reversed(rows):
        others_repeat = any(times[name] > 1 for name in later)
        kept = [metric for metric in metrics if times[metric.name] > 1 or not others_repeat or metric.split in HELD_OUT]
        named = newest is not None and "epoch" in row
        back = int(newest - row["epoch"]) if named else min((later[metric.name] for metric in kept), default=0)  # type: ignore[operator]
        epoch = int(row["epoch"]) if "epoch" in row else None
        printed += [metric._replace(back=max(0, back), epoch=epoch) for metric in reversed(kept)]
        later.update(metric.name for metric in kept)
    splits = {metric.name: metric.split for metric in printed if metric.split is not None}
    return [metric._replace(split=metric.split or splits.get(metric.name)) for metric in reversed(printed)]


def _of_row(row: Mapping[str, float]) -> Iterator[Metric]:
    """The metrics of a row. Beside a `val_acc`, `acc` is the training's."""
    roles = {name: role_of(name) for name in row}
    with_held_out = any(role.split in HELD_OUT for role in roles.values())
    for name, value in row.items():
        role = roles[name]
        held_out = role.split in HELD_OUT
        if role.role == "metric" or (role.role == "loss" and held_out):
            names_split = held_out or with_held_out or "train" in words_of(name)
            split = role.split if names_split else None
            yield Metric(name.removeprefix(f"{role.split} ").strip(), split, value, with_held_out=with_held_out)


def is_recorded(name: str, value: float, recorded: Sequence[tuple[bool, str, float]]) -> bool:
    """Whether one of the metrics that were recorded at this step is the one that was printed.

    They are (of the same split, name, value). Held-out data is `val` for Holdfast, whatever the script calls it.
    Two losses of one split are the same: the script's mean may weight the batches in another way.
    """
    role = role_of(name).role
    return any(
        (same_split and role == "loss" == role_of(other).role) or (_alike(name, other) and _same_value(value, measured))
        for same_split, other, measured in recorded
    )


def _alike(name: str, other: str) -> bool:
    """`val_acc` and `accuracy` share a word, one of them cut short."""
    return any(a.startswith(b) or b.startswith(a) for a in words_of(name) for b in words_of(other))


def _same_value(printed: float, measured: float) -> bool:
    """The same number, rounded or in percent."""
    return any(abs(value - measured) <= _ROUNDED * abs(measured) for value in (printed, printed / 100)) or printed == measured
