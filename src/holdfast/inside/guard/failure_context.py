"""What a bad update is told with: which batch it was, whether its values were finite, and where the bad gradients began.

On a GPU a bad update is known a step or so later; until then the batches of the steps that are under way are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.inside.guard.first_non_finite import first_bad
from holdfast.inside.guard.soundness import look_at_weights
from holdfast.inside.observers.batches import Batches, Drawn
from holdfast.inside.observers.saved_batch import SavedBatches, describe, save_batches

_UNDER_WAY = 8  # steps
_INDICES = 64  # that are told in the journal; the file beside the batch has them all


class FailureContext:
    """Finds what is to blame for the bad updates of one training."""

    def __init__(
        self,
        batches: Batches,
        *,
        folder: Path,
        models: Callable[[], list[nn.Module]],
        run_later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._batches, self._folder, self.models, self._run_later = batches, folder, models, run_later
        self._under_way: deque[tuple[int, list[Drawn]]] = deque(maxlen=_UNDER_WAY)

    def step_sent(self, step: int) -> None:
        """The numbers of a step are on their way from the device: keep its batches until they are here."""
        self._under_way.append((step, self._batches.current()))

    def about_weights(self) -> dict[str, Any]:
        """Whether the weights were sound before the update: `finite`, or what is wrong with which."""
        return {"weights": look_at_weights(self.models())}

    def about_batch(self, step: int, in_full: bool) -> dict[str, Any]:
        """Which batch it was; saved for a replay if it is one of the first."""
        drawn = next((batches for number, batches in self._under_way if number == step), None)
        if drawn is None:
            drawn = self._batches.current()
        if not drawn:
            return {"input": "unknown"}
        saved = self._save(step, drawn) if in_full else describe(step, drawn)
        return {"input": saved.input, "batch": _told(saved)}

    def about_parameters(self, bad: list[str], loss_is_finite: bool) -> dict[str, Any]:
        """Where the bad gradients began, by the order in which the models use their parameters."""
        order = [name for model in self.models() for name, _ in model.named_parameters()]
        first_non_finite = first_bad(order, dict.fromkeys(order, 0) | dict.fromkeys(bad, 1), loss_finite=loss_is_finite)
        if first_non_finite is None:
            return {}
        return {
            "parameter": first_non_finite.parameter,
            "module": first_non_finite.module,
            "began_in": first_non_finite.began_in,
            "words": first_non_finite.words,
        }

    def _save(self, step: int, drawn: list[Drawn]) -> SavedBatches:
        state = {str(number): model.state_dict() for number, model in enumerate(self.models())}
        randomness = drawn[0].randomness
        return save_batches(self._folder, step, drawn, state=state, randomness=randomness, run_later=self._run_later)


def _told(saved: SavedBatches) -> dict[str, Any]:
    indices = [None if found is None else found[:_INDICES] for found in saved.dataset_indices]
    told = {
        "indices": indices[0] if len(indices) == 1 else indices,
        "dataset": saved.dataset,
        "bad_samples": saved.bad_samples[:_INDICES],
        "file": None if saved.file is None else Path(saved.file).name,
        "left_out": saved.left_out,
    }
    return {key: value for key, value in told.items() if value}
