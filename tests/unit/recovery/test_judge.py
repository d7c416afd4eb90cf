from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from holdfast.diagnosis.diagnosis import Diagnosis
from holdfast.inside.policy import Policy as Allowed
from holdfast.recovery import Action, ActionLog
from holdfast.recovery.judge import Judge
from holdfast.recovery.order import defaults, stopping_early
from holdfast.signals.run_folder import RunFolder


def kinds(run: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [row for row in run.journal if row["kind"] == kind]


def codes(run: RunFolder) -> list[str]:
    return [row["code"] for row in kinds(run, "finding") if row["severity"] != "info"]


def test_a_diverged_loss_is_rolled_back_to_the_newest_snapshot_before_it(
    run: RunFolder, train: Any, letters: Any, falling: Any
) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps(falling(600))
    training.holds_snapshots(450, 500, 550, 598, 620)
    judge.look()
    assert letters() == [] and codes(run) == []
    training.steps(np.full(40, 2.4), grad_norm=1.0)
    judge.look()
    (letter,) = letters()
    assert (letter["action"], letter["at"], letter["because"]) == ("roll-back", 0, "loss-divergence")
    assert letter["settings"] == {"to": 550, "before": 596, "lr_factor": 0.75, "warmup_steps": 0, "regain_steps": 50}
    assert codes(run) == ["loss-divergence"]
    (diagnosis,) = kinds(run, "diagnosis")
    assert 598 <= diagnosis["onset"] <= 601 and "learning-rate-too-high" in diagnosis["causes"]
    (action,) = kinds(run, "action")
    assert (action["state"], action["number"]) == ("posted", letter["number"])


def test_a_state_that_is_no_longer_finite_is_rolled_back_though_the_loss_is_fine(
    run: RunFolder, train: Any, letters: Any, falling: Any
) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps(falling(600))
    bad = {"code": "checkpoint-non-finite", "severity": "critical", "step": 560, "rank": 0}
    run.journal.write("finding", **bad, evidence={"bad_tensors": 2, "in_a_row": 1})
    judge.look()
    assert letters() == [], "a model that was never finite is nobody's trouble"
    training.holds_snapshots(500, 550)
    run.journal.write("finding", **bad, evidence={"path": "last.pt", "bad_tensors": 2})
    judge.look()
    assert letters() == [], "a file may hold a damaged copy"
    run.journal.write("finding", **bad, evidence={"bad_tensors": 2, "in_a_row": 2})
    judge.look()
    (letter,) = letters()
    assert (letter["action"], letter["because"]) == ("roll-back", "non-finite-weights")
    assert letter["settings"] == {"to": 550, "before": 556, "lr_factor": 1.0, "warmup_steps": 0}
    assert kinds(run, "diagnosis")[-1]["causes"][0] == "weights-damaged"


def test_a_weight_that_no_update_gets_past_is_undone_at_its_first_bad_step(
    run: RunFolder, train: Any, letters: Any, falling: Any
) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps(falling(600))
    training.holds_snapshots(500, 550, 590)  # a state with such a weight is finite
    bad = {"code": "non-finite-loss", "severity": "critical", "step": 560, "rank": 0}
    run.journal.write("finding", **bad, evidence={"weights": "fc.weight: a weight of 2e+03, where 0.1 is normal"})
    judge.look()
    assert letters() == [], "it is large, and updates may still get past it"
    weights = {"weights": "fc.weight: a weight of 2e+38, where 0.1 is normal", "damaged": True}
    run.journal.write("finding", **bad, evidence=weights)
    judge.look()
    (letter,) = letters()
    assert (letter["action"], letter["because"]) == ("roll-back", "non-finite-weights")
    assert letter["settings"] == {"to": 550, "before": 556, "lr_factor": 1.0, "warmup_steps": 0}


def test_weights_that_a_learning_rate_that_jumped_has_damaged_are_its_work_though_its_rows_are_still_to_come(
    run: RunFolder, train: Any, letters: Any, falling: Any
) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps(falling(600), lr=np.full(600, 0.05))
    training.holds_snapshots(500, 590)
    judge.look()
    weights = {"weights": "fc.weight: a weight of 2e+38, where 0.1 is normal", "damaged": True, "lr": 5.0}
    run.journal.write("finding", code="non-finite-loss", severity="critical", step=608, rank=0, evidence=weights)
    judge.look()
    assert kinds(run, "diagnosis")[-1]["causes"][0] == "learning-rate-too-high"
    (letter,) = letters()
    assert letter["settings"] == {"to": 590, "before": 600, "lr_factor": 1.0, "warmup_steps": 0, "lr_limit": 0.05}


NON_FINITE = {"code": "checkpoint-non-finite", "severity": "critical", "rank": 0, "evidence": {"bad_tensors": 2, "in_a_row": 2}}


@pytest.mark.parametrize("restarts", [True, False])
def test_early_in_a_run_the_undone_steps_are_made_again_by_a_restart_once(
    run: RunFolder, train: Any, letters: Any, falling: Any, restarts: bool
) -> None:
    asked: list[Action] = []
    judge = Judge(run, defaults(), restart=lambda _, action: asked.append(action) or restarts)
    training = train()
    training.steps(falling(600))
    training.holds_snapshots(550)
    run.journal.write("finding", step=560, **NON_FINITE)
    judge.look()
    assert [action.settings["before"] for action in asked] == [556]
    assert [letter["action"] for letter in letters()] == ([] if restarts else ["roll-back"]), "where none is possible"
    if restarts:  # it comes back
        run.journal.write("action", action="restart", step=600, because="non-finite-weights", settings={}, state="done")
        training.steps(falling(100))
        training.holds_snapshots(550, 640)
        run.journal.write("finding", step=650, **NON_FINITE)
        judge.look()
        assert len(asked) == 1 and [letter["action"] for letter in letters()] == ["roll-back"]


def test_late_in_a_run_a_roll_back_needs_no_restart(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    training, judge = train(), Judge(run, defaults(), restart=lambda *_: pytest.fail("it was to be restarted"))
    training.steps(falling(4000))
    training.holds_snapshots(3940)
    run.journal.write("finding", step=3950, **NON_FINITE)
    judge.look()
    assert [letter["action"] for letter in letters()] == ["roll-back"]


def test_under_observe_the_same_is_said_and_nothing_is_done(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    training, judge = train(), Judge(run)
    training.steps([*falling(600), *np.full(40, 2.4)])
    judge.look()
    assert codes(run) == ["loss-divergence"] and letters() == []


def test_a_rule_takes_one_finding_out_of_what_is_acted_on(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    training = train()
    judge = Judge(run, defaults(), Allowed("heal", {"loss-divergence": "observe"}))
    training.steps([*falling(600), *np.full(40, 2.4)])
    judge.look()
    assert codes(run) == ["loss-divergence"] and letters() == []


@pytest.mark.parametrize("seed", range(10))
def test_an_ordinary_run_gets_no_finding_of_weight(run: RunFolder, train: Any, letters: Any, falling: Any, seed: int) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps(falling(1500, seed=seed), grad_norm=falling(1500, seed=seed + 50))
    judge.look()
    assert codes(run) == [] and letters() == []


@pytest.mark.parametrize("chunk", [1, 7, 640])
def test_rows_give_the_same_findings_however_they_come(run: RunFolder, train: Any, falling: Any, chunk: int) -> None:
    loss = np.array([*falling(600), *np.full(40, 2.4)])
    loss[300] = 9.0
    training, judge = train(), Judge(run)
    for start in range(0, 640, chunk):
        training.steps(loss[start : start + chunk])
        judge.look()
    found = [(row["code"], row["step"], row["evidence"]["onset"]) for row in kinds(run, "finding")]
    assert found[0] == ("loss-spike", 300, 300)
    assert [code for code, _, _ in found] == ["loss-spike", "loss-divergence"]
    assert found[1][1:] == (615, 600)


def test_nothing_is_judged_until_the_letter_is_answered_and_what_was_undone_is_forgotten(
    run: RunFolder, train: Any, letters: Any, falling: Any
) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps(falling(600))
    training.holds_snapshots(500, 550)
    training.steps(np.full(40, 2.4))
    judge.look()
    training.steps(np.full(40, 2.4))
    judge.look()
    assert len(letters()) == 1
    training.answers(letters()[0])
    training.steps(falling(400, start=0.2, seed=3))
    judge.look()
    assert len(letters()) == 1 and codes(run) == ["loss-divergence"]


def test_failing_again_goes_further_back_then_to_disk_then_stops(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps(falling(600))
    training.holds_snapshots(450, 500, 550)
    for _ in range(4):
        training.steps(np.full(60, 2.4))
        judge.look()
        training.answers(letters()[-1])
        training.steps(falling(80, start=0.2, seed=4))
        judge.look()
    told = [(one["action"], one["settings"].get("to"), one["settings"].get("lr_factor")) for one in letters()]
    assert told[:3] == [("roll-back", 550, 0.75), ("roll-back", 500, 0.375), ("roll-back", "disk", 0.1875)]
    assert told[3][0] == "stop" and len(told) == 4
    assert "after 3 roll-backs" in letters()[3]["settings"]["why"] and letters()[3]["settings"]["code"] == 1


def test_a_refused_roll_back_is_followed_by_the_next_means(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps([*falling(600), *np.full(40, 2.4)])
    judge.look()
    assert letters()[0]["settings"]["to"] == "disk"
    training.answers(letters()[0], "refused")
    judge.look()
    assert [one["action"] for one in letters()] == ["roll-back", "stop"]


@pytest.mark.parametrize(("hosts", "seconds"), [((socket.gethostname(),) * 2, 1), ((socket.gethostname(), "elsewhere"), 3)])
def test_several_ranks_get_one_letter_for_a_step_ahead_of_all_of_them(
    run: RunFolder, train: Any, letters: Any, falling: Any, hosts: tuple[str, str], seconds: int
) -> None:
    ranks = [train(0), train(1)]
    for recording, host in zip(run.recordings(), hosts, strict=True):
        (recording.path / "process.json").write_text(json.dumps({"host": host}))
    ranks[0].holds_snapshots(450, 500, 550)
    ranks[1].holds_snapshots(450, 500)
    for rank in ranks:
        rank.steps([*falling(600, seed=rank.rank), *np.full(40, 2.4)])
    ranks[1].steps(np.full(2, 2.4))
    judge = Judge(run, defaults())
    judge.look()
    (letter,) = letters()
    assert letter["settings"]["to"] == 500
    assert letter["at"] == 641 + 100 * seconds, "steps of 0.01 s; a file may be seen late on another machine"
    ranks[0].answers(letter)
    judge.look()
    ranks[0].steps(np.full(60, 2.4))
    judge.look()
    assert len(letters()) == 1  # rank 1 has not answered


def test_a_training_that_never_answers_is_not_waited_for_for_ever(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    clock = [0.0]
    training, judge = train(), Judge(run, defaults(), now=lambda: clock[0])
    training.steps([*falling(600), *np.full(40, 2.4)])
    judge.look()
    training.steps(np.full(100, 2.4))
    clock[0] = 61.0
    judge.look()
    assert [row["state"] for row in kinds(run, "action")] == ["posted", "refused", "posted"]
    assert letters()[-1]["action"] == "stop"


def test_a_dead_model_is_rolled_back_to_before_it_died(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps(falling(300))
    training.holds_snapshots(250, 290, 300)
    training.steps(np.full(16, math.nan), non_finite=3)
    judge.look()
    (letter,) = letters()
    assert (letter["because"], letter["settings"]["to"]) == ("non-finite-weights", 290)


def test_bad_data_is_no_reason_to_go_back(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps(falling(300))
    run.journal.write(
        "finding", code="non-finite-gradient", severity="warning", step=301, evidence={"input": "field 0: 3 of 64 values are NaN"}
    )
    training.steps(np.full(16, math.nan), skipped=1)
    judge.look()
    assert "non-finite-weights" in codes(run) and letters() == []
    assert kinds(run, "diagnosis")[0]["causes"][0] == "data-non-finite"


def test_a_metric_that_declines_after_a_change_lowers_the_learning_rate(
    run: RunFolder, train: Any, letters: Any, falling: Any
) -> None:
    training, judge = train(), Judge(run, defaults())
    loss = falling(1000)
    for index, value in enumerate((0.5, 0.55, 0.58, 0.6, 0.61, 0.58, 0.53, 0.47)):
        if index == 5:
            run.journal.write("change", what="a new head", step=training.step)
        training.steps(loss[100 * index : 100 * index + 100])
        training.evaluate("accuracy", value)
        judge.look()
    (letter,) = letters()
    assert (letter["action"], letter["settings"]["factor"]) == ("lower-lr", 0.8)
    assert "metric-decline" in codes(run)


def test_a_change_that_the_script_tells_lowers_the_learning_rate_as_is_usual_for_it(
    run: RunFolder, train: Any, letters: Any, falling: Any
) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps(falling(200))
    run.journal.write("change", what="deep supervision", step=training.step)
    training.steps(falling(40, start=0.5))
    judge.look()
    assert letters() == [], "too early to compare the gradients"
    training.steps(falling(40, start=0.5))
    judge.look()
    judge.look()
    (letter,) = letters()
    assert (letter["action"], letter["because"], letter["settings"]["factor"]) == ("lower-lr", "setting-changed", 0.75)


def test_a_metric_that_declines_by_itself_is_said_and_left_alone(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    training, judge = train(), Judge(run, defaults())
    for value in (0.5, 0.55, 0.58, 0.6, 0.61, 0.58, 0.53, 0.47, 0.4):
        training.steps(falling(50, start=0.2))
        training.evaluate("accuracy", value)
        judge.look()
    assert codes(run) == ["metric-decline"] and letters() == []


def test_early_stopping_saves_first_and_ends_well(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    training, judge = train(), Judge(run, stopping_early(5))
    for index in range(12):
        training.steps(falling(20, start=0.2))
        training.evaluate("loss", 1.0 - 0.1 * min(index, 3))
        judge.look()
        while len(letters()) > sum(row["state"] == "done" for row in kinds(run, "action")):
            training.answers(letters()[-1])
            judge.look()
    bests = [one["settings"]["best"] for one in letters() if "best" in one["settings"]]
    assert bests == pytest.approx([1.0, 0.9, 0.8, 0.7])
    last = [one for one in letters() if "best" not in one["settings"]]
    assert [one["action"] for one in last] == ["save-checkpoint", "stop"]
    assert last[1]["settings"]["code"] == 0 and "5 evaluations" in last[1]["settings"]["why"]


def test_a_policy_that_fails_is_told_and_the_others_are_asked(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    class Broken:
        def decide(self, diagnosis: Diagnosis, past: ActionLog) -> Action | None:
            raise ZeroDivisionError("oh")

    told: list[str] = []
    training = train()
    judge = Judge(run, (Broken(), *defaults()), on_trouble=lambda what, error: told.append(f"{what}: {error}"))
    training.steps([*falling(600), *np.full(40, 2.4)])
    judge.look()
    assert told == ["asking the policy Broken: oh"] and len(letters()) == 1


def test_the_last_look_after_the_end_says_and_posts_nothing(run: RunFolder, train: Any, letters: Any, falling: Any) -> None:
    training, judge = train(), Judge(run, defaults())
    training.steps([*falling(600), *np.full(40, 2.4)])
    judge.look(act=False)
    assert codes(run) == ["loss-divergence"] and letters() == []


def test_a_run_without_a_training_is_nothing_to_judge(run: RunFolder, train: Callable[..., Any]) -> None:
    Judge(run, defaults()).look()
    assert list(run.journal) == []


def test_of_trainings_side_by_side_the_one_that_diverges_gets_the_action_and_an_earlier_one_none(
    run: RunFolder, train: Any, letters: Any, falling: Any
) -> None:
    before, judge = train(), Judge(run, defaults())
    before.steps([*falling(600), *np.full(40, 2.4)], grad_norm=1.0)
    one, other = train(), train()
    judge.look()
    assert letters() == [], "it was over when the others began"
    one.holds_snapshots(550)
    for training in (one, other):
        training.steps(falling(600), time=time.time() + 10.0)
    judge.look()
    one.steps(np.full(40, 2.4), grad_norm=1.0, time=time.time() + 20.0)
    judge.look()
    (letter,) = letters()
    assert (letter["action"], letter["part"]) == ("roll-back", 1)
