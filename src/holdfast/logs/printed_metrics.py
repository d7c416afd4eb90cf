"""Metrics in what a script prints: `val_acc 0.94`, `Accuracy: 352/357`, `mAP50: 0.61`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.logs.roles import role_of, words_of
from holdfast.logs.text_file import read_text
from holdfast.signals.curves import HELD_OUT

_ROUNDED = 0.006  # what is printed with two digits, relative to what was measured


class Metric(NamedTuple):
    """One metric of one evaluation, as it was printed."""

    name: str
    split: str | None  # None where the line does not say
    value: float
    back: int  # how many evaluations later the lines end: 0 for the newest


def metrics_in(lines: Iterable[str]) -> list[Metric]:
    """The metrics in some lines, and the losses of held-out data, oldest first. A training loss is a matter of the steps.

    Output that comes in blocks holds several evaluations: the epochs that the lines name say how far they are apart, else the
    order. A number that only the oldest of them has is a setting.
    """
    rows = list(read_text(lines))
    newest = next((row["epoch"] for row in reversed(rows) if "epoch" in row), None)
    seen: dict[str, int] = {}
    found: list[Metric] = []
    for row in reversed(rows):
        here = list(_of_row(row))
        repeated = max((seen.get(name, 0) for name, _, _ in here), default=0)
        named = int(newest - row["epoch"]) if newest is not None and "epoch" in row else repeated
        found += [Metric(name, split, value, max(0, named)) for name, split, value in reversed(here)]
        seen |= {name: repeated + 1 for name, _, _ in here}
    oldest = max((one.back for one in found), default=0)
    repeated_names = {one.name for one in found if one.back < oldest or oldest == 0}
    return [one for one in reversed(found) if one.name in repeated_names]


def _of_row(row: Mapping[str, float]) -> Iterator[tuple[str, str | None, float]]:
    """Name, split and value. Beside a `val_acc`, `acc` is the training's."""
    roles = {name: role_of(name) for name in row}
    says_held_out = any(role.split in HELD_OUT for role in roles.values())
    for name, value in row.items():
        role = roles[name]
        held_out = role.split in HELD_OUT
        if role.role == "metric" or (role.role == "loss" and held_out):
            says_split = held_out or says_held_out or "train" in words_of(name)
            yield name.removeprefix(f"{role.split} ").strip(), role.split if says_split else None, value


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
    return any(abs(one - measured) <= _ROUNDED * abs(measured) for one in (printed, printed / 100)) or printed == measured
