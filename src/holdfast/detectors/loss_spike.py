"""`loss-spike`: the loss of a step stands out, and whether it came back."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.levels import middle, usual
from holdfast.signals.view import Floats, SignalView

_FIRST = 10  # losses, with which the run began
_TREND = 31  # losses whose median is where the run stands


def loss_spike(
    signals: SignalView, *, window: int = 128, active_after: int = 64, sigmas: float = 6.0, settle: int = 32, newest: int = 4,
    back_to: float = 0.05,
) -> Finding | None:  # fmt: skip
    """Compare losses that have had `settle` steps to come back with the window before them.

    Each call looks at `newest` losses, `settle` steps ago. A spike stands `sigmas` deviations out both as it is and as a
    logarithm (batches of one to four give losses with long tails, which are no news), and above everything in the window. It has
    come back once three losses in a row are usual ones, or `back_to` of what had been learned above them.
    """
    steps, loss = signals.last("loss", window + settle)
    if len(loss) < active_after + settle:
        return None
    past, block = loss[:-settle], loss[-settle:]
    heads = block[:newest]
    if np.fmax.reduce(heads) <= np.fmax.reduce(past):  # the common case
        return None
    past = past[np.isfinite(past)]
    peak = int(np.argmax(np.where(np.isfinite(heads), heads, -np.inf)))
    top = float(heads[peak])
    if len(past) < active_after or not np.isfinite(top) or top <= past.max():
        return None
    normal = usual(past)
    score = min(normal.sigmas(top), _log_sigmas(past, top))
    if score < sigmas:
        return None
    early = signals.first("loss", _FIRST)[1]
    learned = max(0.0, middle(early[np.isfinite(early)]) - normal.value) if np.isfinite(early).any() else 0.0
    calm = block[peak + 1 :] < normal.value + max(3 * normal.noise, back_to * learned)
    back = _first_of_three(calm)
    evidence = {
        "onset": int(steps[-settle + peak]),
        "loss": top,
        "normal": normal.value,
        "sigmas": score,
        "recovered": back is not None,
        "within_steps": None if back is None else back + 1,
    }
    return Finding("loss-spike", step=int(steps[-settle + peak]), severity="info", evidence=evidence)


def _log_sigmas(past: Floats, value: float) -> float:
    """Against what losses usually are beside their trend: while a run learns quickly, its fall is no noise."""
    if past.min() <= 0 or value <= 0:
        return np.inf
    logs = np.log(past)
    trend = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(logs, _TREND // 2, mode="reflect"), _TREND), axis=1)
    beside = usual(logs - trend)
    if trend[0] - trend[-1] < 3 * beside.noise:
        return usual(logs).sigmas(float(np.log(value)))
    return beside.sigmas(float(np.log(value) - trend[-1]))


def _first_of_three(calm: np.ndarray) -> int | None:
    runs = calm[:-2] & calm[1:-1] & calm[2:]
    places = np.flatnonzero(runs)
    return int(places[0]) if len(places) else None
