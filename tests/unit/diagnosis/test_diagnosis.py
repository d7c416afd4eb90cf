from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from every_case import every_case

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.causes import BY_CODE, CAUSES, Fix
from holdfast.diagnosis.checkup import check_up
from holdfast.diagnosis.curve_sentences import sentence, sentence_of
from holdfast.diagnosis.diagnosis import diagnose
from holdfast.diagnosis.ranking import rank
from holdfast.signals.curves import Curve, Curves


def found(code: str, **evidence: object) -> Finding:
    return Finding(code, step=120, severity="critical", evidence={"onset": 100, **evidence})


@pytest.mark.parametrize(
    ("code", "evidence", "words"),
    [
        (
            "gpu-out-of-memory",
            {"asked_for": 375 << 20, "free": 179 << 20, "batch_size": 24000, "parts": 1},
            "needed 375 MiB, 179 MiB free, batch 24,000",
        ),
        (
            "gradient-explosion",
            {"norm": 512.0, "limit": 4.0, "loss": 2.0, "lr": 0.1},
            "the gradient norm was 512; the update was clipped to 4",
        ),
        (
            "metric-collapse",
            {"onset": 901, "metric": "acc", "split": "val", "value": 0.1, "before": 0.9, "best": 0.92, "best_step": 700},
            "val acc fell: 0.9 → 0.1; the best was 0.92 at step 700",
        ),
        (
            "disk-full",
            {"folder": "checkpoints", "error": "the disk is full", "in_a_row": 2},
            "could not save to checkpoints (2 times in a row): the disk is full",
        ),
        (
            "loss-spike",
            {"onset": 1210, "loss": 31.0, "normal": 0.5, "recovered": True},
            "loss jumped from 0.5 to 31 at step 1,210, and recovered",
        ),
    ],
)
def test_the_journal_says_a_finding_as_a_sentence(code: str, evidence: dict[str, Any], words: str) -> None:
    assert sentence_of(code, 1220, evidence) == words


def test_a_clock_that_is_wrong_has_its_cause_though_it_is_only_an_info() -> None:
    evidence = {"what": "clock", "rank": 2, "value": "300 s behind", "others": "0 s"}
    assert diagnose([Finding("ranks-differ", step=1, severity="info", evidence=evidence)]).causes == ("clock-differs",)


def test_an_unused_head_is_no_layer_that_is_frozen_by_mistake() -> None:
    evidence = {"why": "unused-head", "count": 2, "of": 8, "parameters": ["head.weight", "head.bias"]}
    report = diagnose([Finding("parameters-not-trained", step=60, severity="info", evidence=evidence)])
    assert report.causes == ("head-unused",)
    assert "the loss does not use head.weight, head.bias" in sentence_of("parameters-not-trained", 60, evidence)


def test_a_machine_that_stopped_answering_is_no_crash() -> None:
    evidence = {"node": 1, "host": "node1", "lost_ranks": [2, 3], "seconds": 61.0, "ended": "node 1 was not heard of for 61 s."}
    assert diagnose([Finding("process-died", step=9, severity="critical", evidence=evidence)]).causes == ("machine-lost",)


def test_what_a_loop_does_not_allow_is_no_bug_of_holdfast() -> None:
    limit = {"what": "guard", "error": "no torch optimizer", "limit": True}
    assert diagnose([Finding("holdfast-degraded", step=1, severity="info", evidence=limit)]).causes == ()
    error = {"what": "guard", "error": "KeyError: 7"}
    assert "error-of-holdfast" in diagnose([Finding("holdfast-degraded", step=1, evidence=error)]).causes


def test_a_weight_beyond_all_numbers_is_said_as_the_journal_holds_it() -> None:
    evidence = {"parameter": "fc", "onset": 22, "seen_at": 76, "weight_norm_before": 1.8, "weight_norm": float("inf")}
    row = Finding("non-finite-weights", step=80, evidence=evidence).as_row()
    said = sentence_of(row["code"], row["step"], row["evidence"])
    assert said is not None and "jumped from 1.8 to inf" in said


def test_a_learning_rate_that_jumped_is_named_before_anything_else() -> None:
    diagnosis = diagnose([found("loss-divergence", lr=0.1, lr_before=0.001, lr_jumped_at=98)])
    assert diagnosis.causes[0] == "learning-rate-too-high" and "setting-changed" in diagnosis.causes
    assert diagnosis.onset == 98


def test_without_a_jump_nothing_was_changed() -> None:
    assert "setting-changed" not in diagnose([found("loss-divergence")]).causes


def test_a_change_that_was_made_shortly_before_is_a_cause() -> None:
    change = {"kind": "change", "step": 60, "what": "deep supervision"}
    assert diagnose([found("metric-decline")], around=[change]).causes[:2] == ("learning-rate-too-high", "setting-changed")
    assert "setting-changed" not in diagnose([found("metric-decline")], around=[change | {"step": 9000}]).causes


def test_input_that_was_bad_already_rules_out_the_rest() -> None:
    findings = [found("non-finite-loss"), found("non-finite-input")]
    assert diagnose(findings).causes[0] == "data-non-finite"
    assert diagnose([found("non-finite-weights")]).causes[0] == "weights-damaged"


def test_an_explosion_beside_a_divergence_speaks_for_missing_clipping() -> None:
    assert "no-clipping" in diagnose([found("loss-divergence"), found("gradient-explosion")]).causes


def test_an_explosion_counts_if_it_came_before_the_loss_rose() -> None:
    row = {"kind": "finding", "code": "gradient-explosion", "step": 97}
    assert diagnose([found("loss-divergence")], around=[row]).evidence["exploded"]
    assert not diagnose([found("loss-divergence")], around=[row | {"step": 100}]).evidence["exploded"]


def test_a_diagnosis_is_a_row() -> None:
    row = diagnose([found("loss-divergence")], snapshots=(50, 100)).as_row()
    assert json.loads(json.dumps(row))["evidence"]["snapshots"] == [50, 100]
    assert (row["step"], row["onset"], row["findings"]) == (120, 100, ["loss-divergence"])


def test_every_cause_says_why_and_what_to_do() -> None:
    assert len(BY_CODE) == len(CAUSES)
    for cause in CAUSES:
        assert cause.because.endswith(".") and cause.fixes and all(fix.as_row()["words"] for fix in cause.fixes)


def test_a_fix_of_a_setting_is_a_command_while_the_run_is_alive() -> None:
    lower = Fix("lower it", setting="lr", op="multiply", value=0.25)
    assert lower.command_for("night", live=True) == "holdfast set -t night 'lr*=0.25'"
    assert lower.command_for("night") is None and lower.command_for(None, live=True) is None
    assert Fix("hold it", setting="clip_norm", op="set", value=1.0).command_for("a", live=True) == "holdfast set -t a 'clip=1'"
    assert Fix("more", setting="dropout", op="set", value=0.2).command_for("a", live=True) is None


def test_what_was_not_finite_before_any_update_is_not_blamed_on_the_learning_rate() -> None:
    began = {"kind": "started"}
    first = diagnose([Finding("non-finite-loss", step=0, evidence={"onset": 0})], around=[began])
    assert first.causes[0] == "overflow-in-forward" and "learning-rate-too-high" not in first.causes
    later = diagnose([Finding("non-finite-loss", step=80, evidence={"onset": 80})], around=[began])
    assert "overflow-in-forward" not in later.causes and "learning-rate-too-high" in later.causes


def test_half_precision_is_named_only_where_something_computes_in_it() -> None:
    found_at = {"kind": "finding", "step": 80, "evidence": {"half": True}}
    plain = diagnose([Finding("non-finite-loss", step=80, evidence={"onset": 80})])
    assert "overflow" not in plain.causes
    scaled = diagnose([Finding("scaler-collapse", step=80, evidence={"onset": 80})])
    assert "overflow" in scaled.causes
    ranked = rank([Finding("non-finite-loss", step=80, evidence={"onset": 80})], Curves("run", ()), around=[found_at])
    assert "overflow" in [one.cause.code for one in ranked]


def test_a_learning_rate_that_became_huge_later_is_not_the_cause() -> None:
    steps = np.arange(200)
    rate = Curve("lr", steps, np.where(steps < 150, 0.003, 7.0), role="lr")
    early = rank([Finding("non-finite-loss", step=80, evidence={"onset": 80})], Curves("run", (rate,)))
    assert not any("7" in words for one in early for words in one.because)


def test_where_no_operation_is_known_the_command_that_finds_it_is_named() -> None:
    curves, saved = Curves("run", ()), {"parameter": "a.weight", "batch": {"file": "step-100.pt"}}
    assert "`holdfast replay`" in sentence(found("non-finite-loss", **saved), curves)
    assert "replay" not in sentence(found("non-finite-loss", **saved, operation="Log"), curves)
    assert "replay" not in sentence(found("non-finite-loss", parameter="a.weight"), curves), "no batch was kept"


@every_case(("onset", "is_cause"), [(180, True), (350, False)])
def test_labels_are_not_blamed_where_the_learning_rate_was_next_to_nothing_for_half_of_the_run(
    onset: int, is_cause: bool
) -> None:
    steps = np.arange(390)
    curves = Curves("run", (Curve("loss", steps, np.full(390, 0.69) - 1e-5 * steps, role="loss"),))
    stays = Finding(
        "not-learning", step=389, severity="warning", evidence={"onset": 0, "start": 0.69, "end": 0.69, "entropy": 0.69}
    )
    rates = {"onset": onset, "lr_before": 0.014, "lr": 8e-8}
    dropped = Finding("loss-plateau", step=onset + 30, severity="info", evidence=rates)
    causes = {
        one.findings[0]: one.cause.code
        for episode in check_up(curves, seen=[stays, dropped]).episodes
        for one in episode.diagnoses[:1]
    }
    assert (causes["not-learning"] == "learning-rate-too-low") is is_cause
    assert causes["loss-plateau"] == "learning-rate-too-low"
