"""Why a resumed training does not continue where the earlier run stopped: state that was not restored."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

_SEEN_BY = ("resume-mismatch",)


def _not_restored(state: str, because: str, *fixes: str) -> Cause:
    """A cause that is named only if the checks after the resume suspect that state."""
    return Cause(
        code=f"{state}-not-restored",
        seen_by=_SEEN_BY,
        signs=(f"{state}-suspect", f"{state}-most-suspect"),
        because=because,
        likely=0.0,
        fixes=tuple(Fix(text) for text in fixes),
    )


WEIGHTS = _not_restored(
    "weights",
    "The model started with different weights: the saved weights were not loaded, or their names do not match.",
    "load the weights before the first step; `load_state_dict(..., strict=False)` returns what was missing: print it",
    "compare the checkpoint with the model: holdfast checkpoints compare",
)
LEARNING_RATE = _not_restored(
    "learning-rate",
    "The learning rate differs from the learning rate at the save.",
    "save `scheduler.state_dict()` too, and load it after the optimizer's",
    "if the learning rate is computed from a step number, save that number and resume from it",
)
MOMENTS = _not_restored(
    "moments",
    "The optimizer started without its moments: its first updates are much larger than those before the save.",
    "save `optimizer.state_dict()` too, and load it before the first step",
    "if the moments are lost, warm up the learning rate over a few hundred steps",
)
NORMALISATION = _not_restored(
    "normalisation",
    "The weights match, but their inputs differ: running statistics were not loaded, or the data or its scaling changed.",
    "load the whole `model.state_dict()`, with its buffers, not only the parameters",
    "compare a batch with one of the previous run: its samples, their mean and std",
)
DATA_POSITION = _not_restored(
    "data-position",
    "The epoch started again: some samples are repeated, others come later.",
    "save at the end of an epoch, or let `run.save` and `run.restore` keep the position",
)

OF_RESUMING = (WEIGHTS, LEARNING_RATE, MOMENTS, NORMALISATION, DATA_POSITION)
