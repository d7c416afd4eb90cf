"""How sure a cause is, measured: how often causes of such a score were right in trainings with a known fault.

`calibration` holds the counts of the even seeds of `benchmarks/population.py`, which checks on its odd seeds that the words are
kept: a likely cause is right at least 4 times in 5, a possible one 2 times in 5.
"""

from __future__ import annotations

from holdfast.diagnosis.calibration import CAUSES, FIRST, OTHER

LIKELY, POSSIBLE = 0.8, 0.4
_PRIOR = 4.0  # trainings, that what is known of all causes counts beside what is known of one
_MOST = 0.95


def probability(cause: str, score: float, *, first: bool) -> float:
    """How often a cause with this score is right; `first`: no other cause of the same findings has a higher one."""
    counts = [(right, of) for at_least, right, of in (FIRST if first else OTHER) if score >= at_least]
    right, of = counts[-1] if counts else (0, 0)
    pooled = (right + _PRIOR * min(score, _MOST)) / (of + _PRIOR)
    right, of = CAUSES.get(f"{cause} {'first' if first else 'other'}", (0, 0))
    return min(_MOST, (right + _PRIOR * pooled) / (of + _PRIOR))


def stated(cause: str, score: float, *, first: bool) -> str:
    """`likely`, `possible`, or nothing: then it is not named."""
    sure = probability(cause, score, first=first)
    return "likely" if sure >= LIKELY else "possible" if sure >= POSSIBLE else ""
