"""The first thing that differs between two records of a training, in the order in which a step computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
STAGES = ("weights", "batch", "output", "loss", "gradient", "updated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two runs part: `same_samples` is known for batches, `same_random` where generators were read."""

    step: int
    stage: str
    name: str
    same_samples: bool | None = None
    same_random: bool | None = None
    generators: tuple[str, ...] = ()  # whose states differed when the batch was drawn

    @property
    def place(self) -> tuple[int, int]:
        """For sorting: a later place is a smaller problem."""
        return self.step, STAGES.index(self.stage) if self.stage in STAGES else len(STAGES)

    def as_row(self) -> dict[str, Any]:
        """For `--json`."""
        return {"step": self.step, "stage": self.stage, "name": self.name, "same_samples": self.same_samples}


def first_difference(first: Sequence[Row], second: Sequence[Row]) -> Difference | None:
    """None if both computed the same, step for step."""
    for left, right in zip(first, second, strict=False):
        difference = _in_step(left, right)
        if difference is not None:
            return difference
    if len(first) != len(second):
        return Difference(step=min(len(first), len(second)), stage="steps", name="number of steps")
    return None


def _in_step(left: Row, right: Row) -> Difference | None:
    parted = tuple(name for name, state in left["random"].items() if right["random"].get(name, state) != state)
    random = not parted if left["random"] else None
    for stage in STAGES:
        pair = _first(left[stage], right[stage])
        if pair is not None:
            name, mine, theirs = pair
            same = mine[2] == theirs[2] if stage == "batch" and mine and theirs else None
            return Difference(
                step=int(left["step"]), stage=stage, name=name, same_samples=same, same_random=random, generators=parted
            )
    return None


def _first(left: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> tuple[str, Sequence[str], Sequence[str]] | None:
    for mine, theirs in zip(left, right, strict=False):
        if mine[:2] != theirs[:2]:
            return mine[0], mine, theirs
    if len(left) != len(right):
        longer = max(left, right, key=len)
        return longer[min(len(left), len(right))][0], (), ()
    return None
