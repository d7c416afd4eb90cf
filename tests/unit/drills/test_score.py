from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from every_case import every_case
from made_trial import made_trial, raised, recorded

from holdfast.drills.faults import every
from holdfast.drills.outcome import RunOutcome
from holdfast.drills.score import score, score_control, score_each, spread

CONTROL = made_trial()
SEEN = raised("non-finite-loss", cause="data-non-finite")


def test_a_fault_that_was_seen_explained_and_survived_counts_as_all_three() -> None:
    found = score(made_trial("nan-batch", raised=(SEEN,)), CONTROL)
    assert (found.seen, found.after_steps, found.after_seconds, found.cause_right) == ("non-finite-loss", 0, 0.5, True)
    assert found.survived and found.good and found.lost_steps == 0


def test_a_finding_from_before_the_fault_is_not_taken_for_it() -> None:
    early = raised("non-finite-loss", step=50, time=4.0)
    found = score(made_trial("nan-batch", raised=(early,)), CONTROL)
    assert found.missed and not found.good


def test_a_finding_of_the_check_up_counts_from_the_step_of_the_fault_on() -> None:
    late, early = raised("non-finite-loss", step=499, time=None), raised("non-finite-loss", step=150, time=None)
    assert score(made_trial("nan-batch", raised=(late,)), CONTROL).seen == "non-finite-loss"
    assert score(made_trial("nan-batch", raised=(late,)), CONTROL).after_seconds is None
    assert score(made_trial("nan-batch", raised=(early,)), CONTROL).missed


def test_a_finding_that_the_fault_does_not_explain_is_a_miss_and_is_named() -> None:
    found = score(made_trial("nan-batch", raised=(raised("slow-step", severity="warning"),)), CONTROL)
    assert found.missed and found.unexpected == ("slow-step",)


def test_a_remark_is_not_enough_unless_the_fault_says_so() -> None:
    assert score(made_trial("nan-batch", raised=(raised("non-finite-loss", severity="info"),)), CONTROL).missed
    remark = score(made_trial("duplicated-split", raised=(raised("too-good", severity="info"),)), CONTROL)
    assert remark.seen == "too-good" and not remark.to_explain


@every_case("cause", ["weights-damaged", None])
def test_a_wrong_first_cause_is_wrong_and_none_is_too(cause: str | None) -> None:
    found = score(made_trial("nan-batch", raised=(raised("non-finite-loss", cause=cause),)), CONTROL)
    assert found.to_explain and not found.cause_right
    assert found.good and found.worth_a_look, "its run is kept"


@every_case(
    ("trial", "why"),
    [
        ({"exit_code": 1}, "exit 1"),
        ({"steps": 400}, "400 of 500 steps"),
        ({"metric": 0.87}, "accuracy 0.87, not 0.9"),
        ({"metric": math.nan}, "accuracy is nan"),
        ({"metric": None}, "accuracy is unknown"),
        ({"metric": 0.9, "metric_name": "train loss"}, "accuracy is unknown"),
        ({"ended": "took too long"}, "it took too long"),
        ({"ended": "hung"}, "it hung"),
    ],
)
def test_a_run_that_ends_otherwise_than_its_control_did_not_survive(trial: dict[str, object], why: str) -> None:
    found = score(made_trial("nan-batch", raised=(SEEN,), **trial), CONTROL)
    assert found.survived is False and found.lost and found.why_not_survived == why


def test_under_observe_a_run_need_not_survive() -> None:
    found = score(made_trial("nan-batch", raised=(SEEN,), policy="observe", exit_code=1), CONTROL)
    assert found.survived is False and not found.lost and found.good


@every_case(("metric", "survived"), [(0.881, True), (0.879, False), (0.95, True)])
def test_a_share_may_be_two_points_worse(metric: float, survived: bool) -> None:
    assert score(made_trial("nan-batch", raised=(SEEN,), metric=metric), CONTROL).survived is survived


@every_case(("loss", "noise", "survived"), [(2.03, 0.0, True), (2.05, 0.0, False), (2.05, 0.03, True), (1.5, 0.0, True)])
def test_a_loss_may_be_two_percent_worse_or_as_much_as_chance_makes(loss: float, noise: float, survived: bool) -> None:
    of_loss = {"metric_name": "val loss", "metric_is_higher": False}
    control, trial = made_trial(metric=2.0, **of_loss), made_trial("nan-batch", raised=(SEEN,), metric=loss, **of_loss)
    assert score(trial, control, noise=noise).survived is survived


def test_the_spread_of_the_controls_is_their_deviation() -> None:
    assert spread([made_trial(metric=value) for value in (1.0, 2.0, 3.0)]) == pytest.approx(1.0)
    assert spread([made_trial(metric=1.0), made_trial(metric=math.nan), made_trial(metric=None)]) == 0.0


def test_a_fault_that_found_nothing_to_get_hold_of_counts_for_nobody() -> None:
    notes = [*made_trial("nan-batch").notes, {"event": "cannot-happen", "number": 0, "why": "the batches hold no numbers"}]
    found = score(made_trial("nan-batch", notes=notes), CONTROL)
    assert not found.injected and found.why_not == "the batches hold no numbers" and not found.missed


def test_a_fault_that_found_nothing_anywhere_counts_for_nobody() -> None:
    injected, nowhere = made_trial("nan-batch").notes[0], {"event": "not-here", "number": 0, "why": "no loader shuffles"}
    found = score(made_trial("nan-batch", notes=[injected, nowhere]), CONTROL)
    assert not found.injected and found.why_not == "no loader shuffles" and not found.missed
    assert score(made_trial("nan-batch", notes=[injected, nowhere, injected]), CONTROL).injected


def test_a_run_that_ended_before_its_fault_says_so() -> None:
    found = score(made_trial("nan-batch", notes=[], steps=120), CONTROL)
    assert not found.injected and found.why_not == "the run ended after 120 steps"


@every_case("code", every())
def test_a_fault_that_never_came_says_what_the_training_did_not_do(code: str) -> None:
    found = score(made_trial(code, notes=[]), CONTROL)
    assert not found.injected and found.why_not.startswith("after step 200 no"), found.why_not


@every_case(("after", "missed"), [(1e-5, False), (0.5, True)])
def test_a_fault_that_did_no_harm_need_not_be_seen_and_one_that_did_must(tmp_path: Path, after: float, missed: bool) -> None:
    run = recorded(tmp_path, [], [*(0.9**step for step in range(200)), *[after] * 300])
    found = score(made_trial("lr-x100", run=run), CONTROL)
    assert found.missed is missed and found.survived and bool(found.unseen) is not missed


def test_nothing_may_be_raised_by_a_harmless_fault() -> None:
    quiet, alarmed = made_trial("process-stopped"), made_trial("process-stopped", raised=(raised("hang"),))
    assert score(quiet, CONTROL).good
    assert score(alarmed, CONTROL).alarmed and not score(alarmed, CONTROL).good


def test_in_a_sequence_each_fault_needs_a_finding_of_its_own() -> None:
    first, second = SEEN, raised("non-finite-loss", step=201, time=11.2)
    both = score_each(made_trial("nan-batch", "inf-pixel", raised=(first, second)), CONTROL)
    assert [(one.fault, one.seen) for one in both] == [("nan-batch", "non-finite-loss"), ("inf-pixel", "non-finite-loss")]
    assert [one.first_of_run for one in both] == [True, False], "what the run lost would be counted twice"
    late_only = score_each(made_trial("nan-batch", "inf-pixel", raised=(second,)), CONTROL)
    assert [one.missed for one in late_only] == [True, False]


def test_lost_steps_are_those_undone_made_twice_and_never_made() -> None:
    told = RunOutcome(raised=(SEEN,), reached=500, made=530, undone=7)
    assert score(made_trial("nan-batch", outcome=told), CONTROL).lost_steps == 37
    stopped = RunOutcome(raised=(SEEN,), reached=300, made=300)
    assert score(made_trial("nan-batch", outcome=stopped, steps=300), CONTROL).lost_steps == 200


def test_what_a_control_raises_above_a_remark_is_a_false_alarm() -> None:
    told = (raised("loss-spike", severity="info"), raised("slow-step", severity="warning"), raised("slow-step"))
    assert score_control(made_trial(raised=told)).false_alarms == ("slow-step",)


def test_a_score_is_json_whatever_numbers_it_holds() -> None:
    row = score(made_trial("nan-batch", raised=(SEEN,), metric=math.nan), CONTROL).as_row()
    assert json.loads(json.dumps(row, allow_nan=False))["metric"] == "nan"


def test_a_run_that_began_from_the_start_was_restarted_and_did_not_survive() -> None:
    again = RunOutcome(raised=(SEEN,), reached=500, made=700, began_again=200)
    found = score(made_trial("nan-batch", outcome=again), CONTROL)
    assert found.restarted and found.survived is False and found.lost and found.lost_steps == 200
    resumed = score(made_trial("nan-batch", outcome=RunOutcome(raised=(SEEN,), reached=500, made=540)), CONTROL)
    assert resumed.survived and not resumed.restarted and resumed.lost_steps == 40
