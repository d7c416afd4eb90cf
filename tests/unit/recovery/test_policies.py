from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from every_case import every_case

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.diagnosis import Diagnosis, diagnose
from holdfast.errors import UsageError
from holdfast.recovery import (
    ActionLog,
    ClipSpikes,
    LowerLearningRate,
    RollBack,
    ShrinkMicroBatch,
    SkipBatch,
    StopEarly,
)
from holdfast.recovery.order import defaults, load


def diagnosis(*codes: str, step: int = 1000, onset: int = 980, snapshots: tuple[int, ...] = (), **evidence: Any) -> Diagnosis:
    findings = [Finding(code, step=step, severity="critical", evidence={"onset": onset, **evidence}) for code in codes]
    return diagnose(findings, snapshots=snapshots)


def past(*rows: tuple[str, int, dict[str, Any]], state: str = "done") -> ActionLog:
    made = [
        {
            "kind": "action",
            "action": kind,
            "step": at,
            "at": at,
            "because": "x",
            "settings": settings,
            "number": n,
            "state": state,
        }
        for n, (kind, at, settings) in enumerate(rows)
    ]
    return ActionLog.from_rows(made)


def test_going_back_takes_the_newest_snapshot_that_is_surely_from_before() -> None:
    action = RollBack().decide(diagnosis("loss-divergence", snapshots=(900, 950, 978, 990)), past())
    assert action is not None
    assert action.settings == {"to": 950, "before": 976, "lr_factor": 0.75, "warmup_steps": 0, "regain_steps": 50}


def test_only_the_first_cut_in_a_run_that_went_well_is_given_back() -> None:
    again = RollBack().decide(diagnosis("loss-divergence", snapshots=(800, 950)), past(("roll-back", 500, {"to": 450})))
    assert again is not None and again.settings["lr_factor"] == 0.75 and "regain_steps" not in again.settings
    early = RollBack().decide(diagnose([Finding("loss-divergence", step=80, severity="critical")], snapshots=(10,)), past())
    assert early is not None and early.settings["lr_factor"] == 0.75 and "regain_steps" not in early.settings


def test_weights_that_something_else_wrote_are_no_reason_to_learn_more_slowly() -> None:
    found = replace(diagnosis("loss-divergence", snapshots=(900,)), causes=("weights-overwritten",))
    action = RollBack().decide(found, past())
    assert action is not None and action.settings == {"to": 900, "before": 976, "lr_factor": 1.0, "warmup_steps": 0}


def test_after_an_explosion_the_cut_is_deeper_but_a_learning_rate_that_had_jumped_is_only_kept_from_it() -> None:
    both = ("loss-divergence", "gradient-explosion")
    action = RollBack().decide(diagnosis(*both, snapshots=(900,)), past())
    assert action is not None and action.settings["lr_factor"] == 0.25
    jumped = {"lr": 0.1, "lr_before": 0.001, "lr_jumped_at": 975}
    action = RollBack().decide(diagnosis(*both, snapshots=(900, 973, 976), **jumped), past())
    assert action is not None
    assert action.settings == {"to": 973, "before": 975, "lr_factor": 1.0, "warmup_steps": 0, "lr_limit": 0.001}


def test_if_holding_the_learning_rate_was_not_enough_it_is_cut_too() -> None:
    before = past(("roll-back", 900, {"to": 850, "lr_limit": 0.001}))
    jumped = {"lr": 0.1, "lr_before": 0.001, "lr_jumped_at": 975}
    action = RollBack().decide(diagnosis("loss-divergence", snapshots=(800, 850), **jumped), before)
    assert action is not None and action.settings["to"] == 800
    assert action.settings["lr_factor"] == 0.5 and action.settings["lr_limit"] == 0.001


def test_a_second_roll_back_goes_clearly_further_and_without_such_a_snapshot_to_disk_from_before_the_trouble() -> None:
    before = past(("roll-back", 990, {"to": 960}))
    action = RollBack().decide(diagnosis("loss-divergence", snapshots=(900, 940, 950, 960)), before)
    assert action is not None and (action.settings["to"], action.settings["before"]) == (900, 910), "or a newer one on disk"
    action = RollBack().decide(diagnosis("loss-divergence", snapshots=(940, 950, 960)), before)
    assert action is not None and (action.settings["to"], action.settings["before"]) == ("disk", 976)


def test_a_damaged_weight_that_was_met_before_the_onset_counts_from_there() -> None:
    found = diagnosis("non-finite-weights", snapshots=(900, 960, 970), damaged_at=968)
    action = RollBack().decide(found, past())
    assert action is not None and (action.settings["to"], action.settings["before"]) == (960, 964)


def test_trouble_long_after_a_roll_back_is_new_trouble() -> None:
    action = RollBack().decide(diagnosis("loss-divergence", snapshots=(800, 950)), past(("roll-back", 500, {"to": 450})))
    assert action is not None and action.settings["to"] == 950 and action.settings["lr_factor"] == 0.75


def test_all_roll_backs_together_are_bounded() -> None:
    before = past(*[("roll-back", at, {"to": at - 50}) for at in range(-2000, 700, 450)])
    action = RollBack().decide(diagnosis("loss-divergence", snapshots=(900,)), before)
    assert action is not None and action.kind == "stop"


def test_a_decline_noticed_before_does_not_drag_the_roll_back_further() -> None:
    findings = [
        Finding("metric-decline", step=990, evidence={"onset": 300}),
        Finding("loss-divergence", step=1000, severity="critical", evidence={"onset": 980}),
    ]
    action = RollBack().decide(diagnose(findings, snapshots=(250, 950)), past())
    assert action is not None and action.settings["to"] == 950


def test_clipping_is_for_gradients_whose_loss_has_not_diverged() -> None:
    action = ClipSpikes().decide(diagnosis("gradient-explosion", normal=0.5), past())
    assert action is not None and action.settings == {"max_norm": 1.5, "steps": 200}
    assert ClipSpikes().decide(diagnosis("gradient-explosion", "loss-divergence", normal=0.5), past()) is None
    often = past(*[("clip", 900 + n, {}) for n in range(3)])
    assert ClipSpikes().decide(diagnosis("gradient-explosion", normal=0.5), often) is None


def test_the_learning_rate_is_lowered_for_a_decline_without_a_change_only_if_told_so() -> None:
    assert LowerLearningRate().decide(diagnosis("metric-decline"), past()) is None
    action = LowerLearningRate(only_after_a_change=False).decide(diagnosis("metric-decline"), past())
    assert action is not None and action.settings["factor"] == 0.8


def test_a_batch_that_does_not_fit_is_split_further_each_time() -> None:
    first = ShrinkMicroBatch().decide(diagnosis("gpu-out-of-memory"), past())
    second = ShrinkMicroBatch().decide(diagnosis("gpu-out-of-memory"), past(("shrink-micro-batch", 990, {"parts": 2})))
    assert first is not None and second is not None
    assert (first.settings["parts"], second.settings["parts"]) == (2, 4)


def test_a_bad_batch_is_skipped_a_few_times_at_most() -> None:
    spike = diagnosis("loss-spike")
    spike = Diagnosis(spike.findings, ("bad-batch",), step=spike.step)
    assert SkipBatch().decide(spike, past()) is not None
    assert SkipBatch().decide(spike, past(*[("skip-batch", 900 + n, {}) for n in range(3)])) is None


def test_early_stopping_is_off_by_default() -> None:
    plateau = diagnosis("loss-plateau", evaluations=25, metric="loss", best=0.3, best_step=100)
    assert StopEarly().decide(plateau, past()) is None
    action = StopEarly(patience=20).decide(plateau, past())
    assert action is not None and action.settings["code"] == 0


def test_ranks_that_did_the_same_thing_count_once_and_refusals_are_kept_apart() -> None:
    row = {"kind": "action", "action": "clip", "step": 5, "because": "x", "number": 1, "state": "done", "at": 9}
    log = ActionLog.from_rows(
        [row | {"rank": 0}, row | {"rank": 1}, row | {"number": 2, "state": "refused"}, {"kind": "finding"}]
    )
    assert (log.count("clip"), log.count("clip", since=10), len(log.tried("clip"))) == (1, 0, 2)
    assert (last := log.last("clip")) is not None and last.at == 9


def test_names_and_files_stand_for_policies(tmp_path: Path) -> None:
    assert load("observe") == load("guard") == () and load("heal") == defaults()
    file = tmp_path / "mine.py"
    file.write_text(
        "from holdfast.recovery import Action, RollBack\n"
        "class Mine:\n"
        "    def decide(self, diagnosis, past):\n"
        "        return Action('save-checkpoint', step=diagnosis.step, because='mine')\n"
        "policies = [RollBack(watch_steps=50), Mine()]\n"
    )
    first, second = load(str(file))
    assert first == RollBack(watch_steps=50) and type(second).__name__ == "Mine"


@every_case(
    ("text", "words"),
    [
        ("1/0", "ZeroDivisionError"),
        ("x = 1", "does not define `policies`"),
        ("policies = [3]", "3 in"),
        ("policies = [int]", "int"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        load(str(file))


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as refused:
        load("heel")
    assert "heal" in refused.value.fix


def test_policies_load_without_torch_and_without_duckdb() -> None:
    heavy = "('torch', 'duckdb', 'pyarrow')"
    code = f"import sys, holdfast.recovery, holdfast.recovery.judge; print([m for m in {heavy} if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert answer.stdout.strip() == "[]", answer.stderr
