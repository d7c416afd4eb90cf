"""The state of a training that is being recorded: its models and optimizers, and what is found that belongs to them."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.inside.reflexes.averages import Averages
from holdfast.inside.same import Same
from holdfast.inside.snapshots.state import TrainingState
from holdfast.inside.training import Training


class LivingState:
    """What has to be saved and restored: found once, and again when an optimizer has joined or gone.

    `say` is told, in words and once, what cannot be seen of it, with the line to add. With `whole` nothing is left out, as for a
    checkpoint; a snapshot does without frozen parameters that are far larger than what is trained.
    """

    def __init__(
        self, training: Training, averages: Averages, *, whole: bool = False, say: Callable[[str], None] = lambda _words: None
    ) -> None:
        self._training, self._averages, self._whole, self._say = training, averages, whole, say
        self._state: TrainingState | None = None
        self._members, self._same = (0, 0), Same()

    def __call__(self) -> TrainingState | None:
        """The state as it is now."""
        optimizers = self._training.optimizers()
        averages = self._averages.living()
        members = self._training.changed, len(optimizers)  # not only their number: one may have been made again
        if self._state is None or self._members != members or not self._same.as_before(averages):
            self._state = TrainingState.discover(self._training.roots(), optimizers, averages, whole=self._whole)
            self._members, self._same = members, Same(averages)
            for words in self._state.missing():
                self._say(words)
        return self._state
