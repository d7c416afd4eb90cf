"""`not-learning`: the loss stands where it is when the inputs are ignored and only the frequency of the answers is known."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.runs.fields import fields_of, label_field, of_split
from holdfast.signals.run_view import RunView


def guessing(run: RunView, *, rows: int = 512, at_end: int = 128, close: float = 0.03, moved: float = 0.01) -> Finding | None:
    """The loss has not moved by `moved` in the second half of the run, and lies within `close` of the labels' entropy.

    Language models pass that level in their first steps, and leave it: one that continues is given `rows` steps for that.
    """
    losses, learned = run.whole["loss"].means, fields_of(of_split(run, "train"))
    name = label_field(learned)
    if run.seen < (at_end if run.ended else rows) or len(losses) < 16 or name is None:
        return None
    entropy = learned[name][-1].entropy
    half = losses[len(losses) // 2 :]
    start, middle, end = float(losses[0]), float(np.median(half[: len(half) // 2])), float(np.median(half[len(half) // 2 :]))
    is_flat = abs(middle - end) <= moved * end and abs(end - entropy) <= close * entropy
    if not entropy > 0.0 or not is_flat or float(losses.min()) < (1.0 - 2 * close) * entropy:  # what was known once is lost
        return None
    evidence = {"onset": 0, "start": start, "end": end, "entropy": entropy}
    return Finding("not-learning", step=run.step, evidence=evidence, series="loss")
