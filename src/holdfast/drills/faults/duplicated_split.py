"""What is held out was learned from: the split was made twice from the same list, or copies are on both sides."""

from __future__ import annotations

from typing import Any

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.scene import Scene

_KEPT = 32  # batches


class DuplicatedSplit(Fault):
    """Each evaluation gets batches of the training data instead of its own."""

    code = "duplicated-split"
    what = "evaluations see samples of the training data"
    expected = Expected(findings=("split-leak", "too-good"), causes=("duplicates-across-splits",), remark=True)
    needs = ("loader", "evaluation")
    lasting = True
    from_start = True

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._kept: list[Any] = []
        self._next = 0

    def batch(self, batch: Any, scene: Scene) -> Any:
        """Keep some; they stay as they are."""
        if len(self._kept) < _KEPT:
            self._kept.append(batch)
        return batch

    def held_out_batch(self, batch: Any, scene: Scene) -> Any:
        """One after the other, the same in each evaluation as far as they go."""
        if not self._kept:
            return batch
        self._next += 1
        return self._kept[self._next % len(self._kept)]
