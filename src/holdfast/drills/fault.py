"""What a fault is: what goes wrong at a step, where it is injected, and what should be detected and survived.

A fault is a class in its own file. It overrides the one or two hooks where it is injected; they are called at the
fault's step:

    class NanBatch(Fault):
        code = "nan-batch"
        description = "all inputs of one batch become NaN"
        expected = Expected(findings=("non-finite-loss",), causes=("data-non-finite",), survivable=True)
        needs = ("float-inputs",)

        def batch(self, batch, context):
            return context.change_inputs(batch, lambda inputs: inputs.fill_(float("nan")))

It runs in the training process: torch, numpy and the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import CannotHappen as CannotHappen
from holdfast.errors import NotHere as NotHere

if TYPE_CHECKING:
    from holdfast.drills.injection.context import FaultContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What Holdfast should report and do; of several codes, any one is right."""

    findings: tuple[str, ...] = ()  # none: the fault is harmless, and nothing above info may be raised
    causes: tuple[str, ...] = ()  # one of these comes first; none: the finding has no cause
    survivable: bool = False  # under `heal` the run ends as one without the fault does
    info_is_enough: bool = False  # a finding of severity `info` is enough: it may be intended
    unseen: str = ""  # why `observe` cannot detect it; such a fault does not count
    ranks: tuple[int, ...] = ()  # of which one must be named, if not the fault's own
    by_loss: bool = False  # it shows only in what is learned: where the loss does not rise, there is nothing to see


class Fault:
    """Something that goes wrong. Each hook is called at the fault's step; a lasting fault's at every step from then on."""

    code: ClassVar[str]
    description: ClassVar[str]  # in a sentence, without a full stop
    expected: ClassVar[Expected]
    needs: ClassVar[tuple[str, ...]] = ()  # of `injection.facts.FACTS`: without them the fault is skipped and reported
    lasting: ClassVar[bool] = False  # active until the end, also after a restart
    from_start: ClassVar[bool] = False  # at step 0, whatever was asked: a mistake of the script, not an accident
    rank: ClassVar[int | None] = None  # the only rank where it happens
    on_every_rank: ClassVar[bool] = (
        False  # a setting that is wrong is wrong on all; other faults happen on the first that comes by
    )
    strength: ClassVar[float] = 1.0  # default strength; each fault defines what it multiplies
    strength_in_steps: ClassVar[float] = 0.0  # of a strength in seconds: so many steps of the control, if that is more

    def __init__(self, strength: float | None = None) -> None:
        self.strong = type(self).strength if strength is None else strength

    # Where a fault is injected

    def loader(self, arguments: dict[str, Any], context: FaultContext) -> None:
        """A DataLoader is being made: change its arguments, all of them by name."""

    def batch(self, batch: Any, context: FaultContext) -> Any:
        """A training batch, as the loader delivers it; without a loader, the tuple of the model's inputs."""
        return batch

    def held_out_batch(self, batch: Any, context: FaultContext) -> Any:
        """A batch of an evaluation."""
        return batch

    def sample(self, indices: list[int], context: FaultContext) -> None:
        """Samples are being read: in a loader worker, or in the training process where there are none."""

    def output(self, output: Any, context: FaultContext) -> Any:
        """The model's output in training."""
        return output

    def gradients(self, context: FaultContext) -> None:
        """The gradients are there, the update is not made yet."""

    def update(self, context: FaultContext) -> None:
        """An update was made: between two steps."""

    def saving(self, path: Path, context: FaultContext) -> None:
        """The script is about to save a file with `torch.save`."""

    def saved(self, path: Path, context: FaultContext) -> None:
        """The script has saved a file with `torch.save`."""

    def collective(self, name: str, context: FaultContext) -> bool:
        """The script calls a collective; True skips it."""
        return False


HOOKS = ("loader", "batch", "held_out_batch", "sample", "output", "gradients", "update", "saving", "saved", "collective")


def hooks_of(fault: Fault) -> frozenset[str]:
    """The hooks that a fault uses."""
    return frozenset(place for place in HOOKS if getattr(type(fault), place) is not getattr(Fault, place))
