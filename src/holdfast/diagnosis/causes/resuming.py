"""Why a resumed training does not go on where the one before stopped: a part of its state that was not restored."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

_SEEN_BY = ("resume-mismatch",)


def _not_restored(state: str, because: str, *fixes: str) -> Cause:
    """A cause that is named only where the watch after the resume suspects that state."""
    return Cause(
        code=f"{state}-not-restored",
        seen_by=_SEEN_BY,
        signs=(f"{state}-suspect", f"{state}-most-suspect"),
        because=because,
        likely=0.0,
        fixes=tuple(Fix(words) for words in fixes),
    )


WEIGHTS = _not_restored(
    "weights",
    "The model began with other weights than those that were saved: they were not loaded, or under names it does not have.",
    "load the weights before the first step; `load_state_dict(..., strict=False)` returns what was missing: print it",
    "compare the checkpoint with the model: holdfast checkpoints compare",
)
LEARNING_RATE = _not_restored(
    "learning-rate",
    "The learning rate is not the one at which the run before was saved.",
    "save `scheduler.state_dict()` too, and load it after the optimizer's",
    "where the rate is computed from a step number, save that number and resume from it",
)
MOMENTS = _not_restored(
    "moments",
    "The optimizer began without its moments: its first updates are much longer than those before the save.",
    "save `optimizer.state_dict()` too, and load it before the first step",
    "where the moments are lost for good, warm the learning rate up over some hundred steps",
)
NORMALISATION = _not_restored(
    "normalisation",
    "The same weights see other inputs: running statistics were not loaded, or the data is another one or scaled in another way.",
    "load the whole `model.state_dict()`, with its buffers, not only the parameters",
    "compare a batch with one of the run before: its samples, their mean and deviation",
)
DATA_POSITION = _not_restored(
    "data-position",
    "The pass over the data began anew: some samples came twice, others come later.",
    "save at the end of an epoch, or let `run.save` and `run.restore` keep the position",
)

OF_RESUMING = (WEIGHTS, LEARNING_RATE, MOMENTS, NORMALISATION, DATA_POSITION)
