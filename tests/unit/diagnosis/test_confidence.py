"""The words that a cause is named with: kept on what was measured, and silent where nothing speaks for a cause."""

from __future__ import annotations

from every_case import every_case

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.calibration import CAUSES, FIRST, OTHER
from holdfast.diagnosis.checkup import Episode
from holdfast.diagnosis.confidence import LIKELY, POSSIBLE, probability, stated
from holdfast.diagnosis.ranking import rank
from holdfast.signals.curves import Curves

NOTHING = Curves("run", ())


@every_case("table", [FIRST, OTHER])
def test_what_was_measured_rises_with_the_score(table: tuple[tuple[float, int, int], ...]) -> None:
    edges = [edge for edge, _, _ in table]
    assert edges == sorted(edges) and all(0 <= right <= of for _, right, of in table)
    assert table[-1][1] / table[-1][2] > table[0][1] / table[0][2]


def test_a_cause_that_was_often_wrong_is_less_sure_than_one_that_never_was() -> None:
    assert all(0 <= right <= of for right, of in CAUSES.values())
    assert probability("data-non-finite", 0.8, first=True) > probability("learning-rate-too-high", 0.8, first=True)
    assert probability("unheard-of", 0.8, first=True) > probability("unheard-of", 0.8, first=False)


@every_case("score", [0.15, 0.5, 0.8, 2.0])
def test_a_word_is_said_only_where_worker_fraction_is_reached(score: float) -> None:
    for first in (True, False):
        sure, word = probability("unheard-of", score, first=first), stated("unheard-of", score, first=first)
        assert word == ("likely" if sure >= LIKELY else "possible" if sure >= POSSIBLE else "")


def test_a_cause_for_which_nothing_speaks_is_not_named() -> None:
    finding = Finding("non-finite-loss", step=9, severity="critical", evidence={"onset": 9})
    considered = rank([finding], NOTHING)
    shown = Episode((finding,), tuple(considered)).diagnoses
    assert {one.cause.code for one in considered} > {one.cause.code for one in shown}
    assert all(one.stated for one in shown) and "log-of-zero" not in {one.cause.code for one in shown}
