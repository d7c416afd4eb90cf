"""What is a hang, and above all what is none."""

from __future__ import annotations

from every_case import every_case

from holdfast.detectors.hang import Limits, Standing, Suspect, awake, code_of, limit_of, stands, suspects

LIMITS = Limits()
STEPPING = {"rank": 0, "steps": 500, "step": 499, "longest_step": 0.2}


def curve_finding(*standings: Standing) -> list[int]:
    return [suspect.standing.rank for suspect in suspects(standings, LIMITS)]


def test_a_training_that_is_silent_for_longer_than_ten_seconds_is_suspected() -> None:
    assert curve_finding(Standing(**STEPPING, silent=9.9)) == []
    assert curve_finding(Standing(**STEPPING, silent=10.1)) == [0]


def test_the_limit_is_five_times_the_longest_recent_step_where_that_is_more() -> None:
    slow = {**STEPPING, "longest_step": 7.0}
    assert curve_finding(Standing(**slow, silent=34.0)) == []
    assert curve_finding(Standing(**slow, silent=36.0)) == [0]


@every_case(
    "quiet",
    [
        Standing(rank=0, silent=90.0, steps=0, phase="starting"),
        Standing(rank=0, silent=90.0, steps=0, phase="training"),
        Standing(rank=0, silent=90.0, steps=2, phase="training", longest_step=0.1),
        Standing(**STEPPING, silent=100 * 0.2 + 300, phase="evaluating"),
        Standing(**STEPPING, silent=120.0, phase="saving"),
        Standing(**STEPPING, silent=120.0, phase="loading"),
        Standing(**STEPPING, silent=300.0, phase="compiling"),
        Standing(**STEPPING, silent=300.0, phase="catching-up"),
        Standing(**STEPPING, silent=120.0, phase="ending"),
        Standing(**STEPPING, silent=1e9, phase="paused"),
        Standing(**STEPPING, silent=60.0, state="T"),
        Standing(**STEPPING, silent=60.0, state="t"),
        Standing(**STEPPING, silent=120.0, state="D"),
    ],
    ids=lambda one: f"{one.phase} {one.state} {one.steps}",
)
def test_no_hang_is_suspected(quiet: Standing) -> None:
    assert curve_finding(quiet) == []


def test_what_announces_itself_is_not_excused_for_ever() -> None:
    assert curve_finding(Standing(**STEPPING, silent=601.0, phase="evaluating")) == [0]
    assert curve_finding(Standing(**STEPPING, silent=601.0, phase="saving")) == [0]
    assert curve_finding(Standing(rank=0, silent=601.0, phase="starting")) == [0]


def test_an_evaluation_may_take_five_times_the_longest_one_before() -> None:
    assert limit_of(Standing(**STEPPING, silent=0.0, phase="evaluating", longest_evaluation=400.0), LIMITS) == 2000.0


def test_an_evaluation_that_waits_for_its_loader_is_suspected_once_it_is_far_longer_than_all_before() -> None:
    known = {**STEPPING, "phase": "evaluating", "longest_evaluation": 4.0}
    assert curve_finding(Standing(**known, silent=19.0)) == []
    (suspect,) = suspects([Standing(**known, silent=21.0)], LIMITS)
    assert [stands(suspect, verdict, LIMITS) for verdict in ("loader-stall", "hang", "busy", "unseen")] == [True] + 3 * [False]
    assert not stands(suspect, "loader-stall", LIMITS, on_disk=True)
    (late,) = suspects([Standing(**known, silent=601.0)], LIMITS)
    assert stands(late, "hang", LIMITS)
    waiting = Standing(**{**STEPPING, "rank": 1}, silent=30.0, phase="collective")
    assert curve_finding(Standing(**known, silent=21.0), waiting) == [0], "the other one waits for it"


def test_ranks_wait_for_one_that_evaluates_or_saves() -> None:
    waiting = Standing(**{**STEPPING, "rank": 1}, silent=200.0, phase="collective")
    assert curve_finding(Standing(**STEPPING, silent=200.0, phase="evaluating"), waiting) == []
    assert curve_finding(Standing(**STEPPING, silent=601.0, phase="evaluating"), waiting) == [0, 1]
    assert curve_finding(Standing(**STEPPING, silent=200.0), waiting) != []


def test_a_rank_that_hangs_alone_is_suspected_while_the_others_step() -> None:
    assert curve_finding(Standing(**STEPPING, silent=0.1), Standing(**{**STEPPING, "rank": 1}, silent=11.0)) == [1]


def test_a_stopped_process_keeps_the_others_from_being_suspected() -> None:
    stopped = Standing(**{**STEPPING, "rank": 1}, silent=0.0, state="T")
    assert curve_finding(Standing(**STEPPING, silent=60.0, phase="collective"), stopped) == []


@every_case("verdict", ["moving", "paused", "stopped"])
def test_a_debugger_a_pause_and_moving_stacks_end_the_suspicion(verdict: str) -> None:
    assert not stands(Suspect(Standing(**STEPPING, silent=1e6), 10.0), verdict, LIMITS)


def test_what_the_stacks_know_as_work_is_given_the_longer_limit() -> None:
    assert not stands(Suspect(Standing(**STEPPING, silent=300.0), 10.0), "busy", LIMITS)
    assert stands(Suspect(Standing(**STEPPING, silent=601.0), 10.0), "busy", LIMITS)
    assert stands(Suspect(Standing(**STEPPING, silent=11.0), 10.0), "loader-stall", LIMITS)


def test_while_a_process_waits_for_a_disk_there_is_more_patience() -> None:
    assert not stands(Suspect(Standing(**STEPPING, silent=300.0), 10.0), "loader-stall", LIMITS, on_disk=True)
    assert stands(Suspect(Standing(**STEPPING, silent=601.0), 10.0), "loader-stall", LIMITS, on_disk=True)


def test_the_code_is_that_of_the_stacks_or_a_plain_hang() -> None:
    assert [code_of(one) for one in ("loader-stall", "collective-stall", "hang", "unseen")] == [
        *("loader-stall", "collective-stall", "hang", "hang")
    ]


def test_time_in_which_the_watcher_itself_slept_does_not_count() -> None:
    assert awake(0.6, 0.5) == 0.6
    assert awake(3600.0, 0.5) == 0.5
