"""What a fault is: something that goes wrong at a step, where in the training it gets in, and what a good watcher makes of it.

A fault is a class in a file of its own. It overrides the one or two places where it gets in; the training calls them when
the step has come:

    class NanBatch(Fault):
        code = "nan-batch"
        what = "all numbers of one batch become NaN"
        expected = Expected(findings=("non-finite-loss",), causes=("data-non-finite",), survivable=True)
        needs = ("float-inputs",)

        def batch(self, batch, scene):
            return scene.change_inputs(batch, lambda numbers: numbers.fill_(float("nan")))

It runs in the training process: torch, numpy and the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import CannotHappen as CannotHappen

if TYPE_CHECKING:
    from holdfast.drills.injection.scene import Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a good watcher says and does; of several codes, any one is right."""

    findings: tuple[str, ...] = ()  # none: the fault is harmless, and nothing above a remark may be raised
    causes: tuple[str, ...] = ()  # one of these comes first; none: the finding has no cause
    survivable: bool = False  # under `heal` the run ends as one without the fault does
    remark: bool = False  # a finding of severity `info` is enough: it may be meant so
    unseen: str = ""  # why `observe` cannot see it, in words; such a fault counts for nobody


class Fault:
    """Something that goes wrong. Each place is called at the fault's step; a lasting fault's at every step from there."""

    code: ClassVar[str]
    what: ClassVar[str]  # in a sentence, without a full stop
    expected: ClassVar[Expected]
    needs: ClassVar[tuple[str, ...]] = ()  # of `injection.facts.FACTS`: without them it is left out, with a word
    lasting: ClassVar[bool] = False  # goes on to the end, also after a restart
    from_start: ClassVar[bool] = False  # at step 0, whatever was asked: a mistake of the script, not an accident
    rank: ClassVar[int | None] = None  # the only rank where it happens
    on_every_rank: ClassVar[bool] = (
        False  # a setting that is wrong is wrong on all; other faults happen on the first that comes by
    )
    strength: ClassVar[float] = 1.0  # how strong if nobody says; what it multiplies is the fault's own business

    def __init__(self, strength: float | None = None) -> None:
        self.strong = type(self).strength if strength is None else strength

    # Where a fault gets in

    def loader(self, arguments: dict[str, Any], scene: Scene) -> None:
        """A DataLoader is being made: change its arguments, all of them by name."""

    def batch(self, batch: Any, scene: Scene) -> Any:
        """A batch to learn from, as the loader hands it out; without a loader, the tuple of the model's inputs."""
        return batch

    def held_out_batch(self, batch: Any, scene: Scene) -> Any:
        """A batch of an evaluation."""
        return batch

    def sample(self, indices: list[int], scene: Scene) -> None:
        """Samples are being read: in a loader worker, or in the training process where there are none."""

    def output(self, output: Any, scene: Scene) -> Any:
        """What the model gives out in training."""
        return output

    def gradients(self, scene: Scene) -> None:
        """The gradients are there, the update is not made yet."""

    def update(self, scene: Scene) -> None:
        """An update was made: between two steps."""

    def saving(self, path: Path, scene: Scene) -> None:
        """The script is about to save a file with `torch.save`."""

    def saved(self, path: Path, scene: Scene) -> None:
        """The script has saved a file with `torch.save`."""

    def collective(self, name: str, scene: Scene) -> bool:
        """The script calls a collective; True leaves it out."""
        return False


PLACES = ("loader", "batch", "held_out_batch", "sample", "output", "gradients", "update", "saving", "saved", "collective")


def places_of(fault: Fault) -> frozenset[str]:
    """The places that a fault uses."""
    return frozenset(place for place in PLACES if getattr(type(fault), place) is not getattr(Fault, place))
