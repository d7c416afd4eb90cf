"""Which series is the training loss, the held-out loss and the metric, set by the user where names do not tell."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import LogUnreadable
from holdfast.signals.curves import HELD_OUT, Curve, Curves


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesChoice:
    """Names of series, as `--series` lists them."""

    train_loss: str | None = None
    val_loss: str | None = None
    metric: str | None = None
    better: str | None = None  # of the metric: "higher" or "lower"

    def __bool__(self) -> bool:
        return any((self.train_loss, self.val_loss, self.metric))

    def of(self, curves: Curves) -> Curves:
        """The same run, with the chosen series first in their roles. Raises LogUnreadable for a name that is not in it."""
        first: list[Curve] = []
        if self.train_loss is not None:
            first.append(_as(_named(curves, self.train_loss), "loss", "train", "lower"))
        if self.val_loss is not None:
            first.append(_as(_named(curves, self.val_loss), "loss", "val", "lower"))
        if self.metric is not None:
            first.append(self._metric(_named(curves, self.metric)))
        taken = {curve.name for curve in first}
        rest = [curve for curve in curves.curves if curve.name not in taken]
        return dataclasses.replace(curves, curves=(*first, *rest))

    def _metric(self, curve: Curve) -> Curve:
        way = self.better or curve.better
        if way is None:
            raise LogUnreadable(
                f"Unclear whether higher or lower {curve.name} is better.",
                fix="add --higher-is-better or --lower-is-better",
            )
        return _as(curve, "metric", curve.split if curve.split in HELD_OUT else "val", way)


def _as(curve: Curve, role: str, split: str, better: str) -> Curve:
    return dataclasses.replace(curve, role=role, split=split, better=better)


def _named(curves: Curves, name: str) -> Curve:
    names = [curve.name for curve in curves.curves]
    match = next((curve for curve in curves.curves if curve.name == name), None)
    if match is None:
        raise LogUnreadable(f"{curves.name} has no series named {name}.", fix=f"it has {_some(names, name)}")
    return match


def _some(names: Sequence[str], wanted: str) -> str:
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.4)
    return ", ".join([*near, *(name for name in names if name not in near)][:8]) + (" …" if len(names) > 8 else "")
