"""How well a run is, in a word and a reason; pure, from what was read."""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence

QUIET_SECONDS = 30.0
QUIET_STEPS = 20.0  # nothing is said before this many usual steps have passed without one
_WELL = ("healthy", "finished", "starting")


def rank_health(
    *,
    alive: bool,
    growing: bool,
    over: str | None,
    step: int | None,
    loss: float | None,
    age: float | None,
    usual: float | None,
    degraded: str | None,
) -> tuple[str, str]:
    """The word for one rank. `over` is how the run ended, None while it runs; `usual` how long a step takes."""
    if loss is not None and not math.isfinite(loss):
        return "non-finite loss", f"the loss is {loss} at step {step}" + (f"; {over}" if over else "")
    if over is not None:
        return over, ""
    if not growing:
        return "finished", "its tables are closed"
    if not alive:
        return "process gone", "it ended without closing its tables"
    if degraded is not None:
        return f"degraded: {degraded}", "Holdfast stepped back; the training goes on"
    if step is None:
        return "starting", "no step yet"
    if age is not None and age > max(QUIET_SECONDS, QUIET_STEPS * (usual or 0.0)):
        return f"no step for {age:.0f} s", f"a step usually takes {usual:.3g} s" if usual is not None else ""
    return "healthy", ""


def run_health(folder_exists: bool, alive: bool, over: str | None, ranks: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The word for the run: that of its worst rank, or how it ended."""
    if not folder_exists:
        return "folder gone", "the run folder was removed or cannot be reached"
    for word, reason in ranks:
        if word not in _WELL and word != over:
            return word, reason
    if over is not None:
        return over, ""
    if not ranks:
        return ("starting", "no training has begun") if alive else ("process gone", "it never trained")
    return ("healthy", "") if any(word == "healthy" for word, _ in ranks) else ranks[0]


def exit_word(code: object) -> str:
    """How a command ended; above 128 it was a signal."""
    if not isinstance(code, int) or isinstance(code, bool):
        return "ended"
    if code == 0:
        return "finished"
    if code > 128:
        try:
            return f"killed ({signal.Signals(code - 128).name})"
        except ValueError:
            pass
    return f"exit {code}"
