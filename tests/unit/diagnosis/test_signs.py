"""Signs speak for one cause or against another: they must be seen when they are there, and only then."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
from every_case import every_case

import holdfast
from holdfast.detectors.finding import Finding
from holdfast.diagnosis.causes import CAUSES
from holdfast.diagnosis.causes.numbers import LEARNING_RATE_TOO_HIGH
from holdfast.diagnosis.checkup import check_up
from holdfast.diagnosis.curve_signs import signs_of
from holdfast.diagnosis.diagnosis import diagnose, signs
from holdfast.diagnosis.journal_signs import signs_of_journal
from holdfast.diagnosis.ranking import rank
from holdfast.diagnosis.run_signs import signs_of_findings
from holdfast.signals.curves import Curve, Curves

SOURCE = Path(holdfast.__file__).parent
NOT_SEEN_YET = {
    "allocator-retries",
    "last-batch-smaller",
    "one-class-most",
    "shared-memory-short",
}  # who looks for one takes it out
GB = 1e9


def curves(train: object, val: object = None) -> Curves:
    given = {"train": train} if val is None else {"train": train, "val": val}
    made = [
        Curve(f"{split} loss", np.arange(len(values)), np.asarray(values, float), role="loss", split=split, better="lower")  # type: ignore[arg-type]
        for split, values in given.items()
    ]
    return Curves("run", tuple(made), source="csv")


def test_every_sign_that_a_cause_names_is_seen_somewhere() -> None:
    named = {sign for cause in CAUSES for sign in (*cause.signs, *cause.against, *cause.needs, *cause.ruled_out_by)}
    files = [path for unit in ("diagnosis", "detectors") for path in (SOURCE / unit).rglob("*.py") if "causes" not in path.parts]
    written = {
        node.value
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    made = {sign for sign in named if sign.endswith("-suspect")}  # of what a resume may have lost
    assert named - written - made == NOT_SEEN_YET


def test_a_bad_input_of_later_does_not_explain_weights_that_were_spoiled_before() -> None:
    spoiled = Finding("non-finite-weights", step=355, evidence={"onset": 345, "steps_in_a_row": 11})
    later = {"kind": "finding", "code": "non-finite-loss", "step": 443, "evidence": {"input": "field 0: 1 value is Inf"}}
    assert diagnose([spoiled], around=[later]).causes[0] == "weights-damaged"
    at_the_time = {**later, "step": 345}
    assert diagnose([spoiled], around=[at_the_time]).causes[0] == "data-non-finite"


def test_a_finite_batch_after_ordinary_steps_speaks_for_damaged_weights() -> None:
    spoiled = Finding("non-finite-weights", step=355, evidence={"onset": 345, "steps_in_a_row": 11})
    evidence = {"input": "finite", "norm_before": [0.3, 0.6, 0.5], "loss_before": [0.01, 0.02, 0.012]}
    row = {"kind": "finding", "code": "non-finite-loss", "step": 345, "evidence": evidence}
    first = rank([spoiled], curves([1.0, 0.5]), around=[row])[0]
    assert first.cause.code == "weights-damaged" and "loss 0.012, gradient norm 0.5" in " ".join(first.because)
    growing = {**row, "evidence": {**evidence, "norm_before": [0.3, 0.6, 500.0]}}
    assert rank([spoiled], curves([1.0, 0.5]), around=[growing])[0].because == ()


def not_learning(updates: float, rates: list[float]) -> list[str]:
    """The causes of a loss that stays at the entropy of its labels, with updates of this size and these learning rates."""
    flat = curves(1.39 + 0.005 * np.random.default_rng(0).standard_normal(300))
    steps = np.arange(0, 300, 300 // len(rates))[: len(rates)]
    sizes = Curve("update_ratio", np.arange(5), np.full(5, updates), role="other")
    lr = Curve("lr", steps, np.asarray(rates), role="lr")
    finding = Finding("not-learning", step=299, evidence={"onset": 0, "start": 1.39, "end": 1.39, "entropy": 1.386})
    return [ranked.cause.code for ranked in rank([finding], Curves("run", (*flat.curves, sizes, lr), source="csv"))]


def test_a_loss_at_chance_under_updates_of_normal_size_is_no_matter_of_a_low_learning_rate() -> None:
    usual = not_learning(3e-3, [1e-3] * 6)
    assert usual[0] == "labels-wrong" and "learning-rate-too-low" not in usual
    assert not_learning(6e-3, [1.0] * 6)[0] == "labels-wrong", "the usual rate of Adadelta"
    assert not_learning(2e-6, [1e-6] * 6)[0] == "learning-rate-too-low"


@every_case(
    ("numbers", "sign"),
    [
        (
            {"asked_for": 1 * GB, "allocated": 40 * GB, "reserved": 78 * GB, "free": 0.5 * GB, "total": 80 * GB},
            "reserved-but-unused",
        ),
        ({"asked_for": 2 * GB, "allocated": 30 * GB, "reserved": 31 * GB, "free": 1 * GB, "total": 80 * GB}, "other-processes"),
        (
            {"asked_for": 200 * GB, "allocated": 1 * GB, "reserved": 1 * GB, "free": 78 * GB, "total": 80 * GB},
            "one-sample-fills-it",
        ),
        (
            {"asked_for": 1 * GB, "allocated": 78 * GB, "reserved": 79 * GB, "free": 0.4 * GB, "total": 80 * GB},
            "fixed-part-fills-it",
        ),
    ],
)
def test_the_sizes_at_an_out_of_memory_say_who_holds_it(numbers: dict[str, float], sign: str) -> None:
    step = 0 if sign == "fixed-part-fills-it" else 500
    found = signs_of_findings([Finding("gpu-out-of-memory", step=step, evidence=numbers)])
    assert set(found) == {sign}


def test_a_card_that_is_simply_full_shows_none_of_these_signs() -> None:
    full = {"asked_for": 2 * GB, "allocated": 76 * GB, "reserved": 78 * GB, "free": 1 * GB, "total": 80 * GB}
    assert signs_of_findings([Finding("gpu-out-of-memory", step=500, evidence=full)]) == {}


@every_case(
    ("error", "cause"),
    [
        ("PicklingError: Can't pickle <function <lambda> at 0x7f>: attribute lookup failed", "cannot-be-pickled"),
        ("TypeError: cannot pickle '_queue.SimpleQueue' object", "cannot-be-pickled"),
        ("OSError: [Errno 28] No space left on device", "no-room-for-a-save"),
        ("PermissionError: [Errno 13] Permission denied: 'runs'", "no-permission"),
    ],
)
def test_why_a_checkpoint_could_not_be_saved_is_what_the_error_says(error: str, cause: str) -> None:
    finding = Finding("checkpoint-not-saved", step=9, evidence={"error": error})
    assert [ranked.cause.code for ranked in rank([finding], Curves("run", (), source="holdfast"))] == [cause]


def test_memory_that_workers_hold_or_that_grows_in_evaluations_is_told_apart() -> None:
    grows = {"bytes_per_step": 1e6, "grown": 1e9, "now": 2e9}
    assert "workers-hold-most" in signs_of_findings([Finding("host-memory-growth", step=9, evidence={**grows, "workers": 9e9})])
    assert "grows-in-evaluation" in signs_of_findings(
        [Finding("host-memory-growth", step=9, evidence={**grows, "in_evaluation": 0.9})]
    )
    assert set(signs_of_findings([Finding("host-memory-growth", step=9, evidence={**grows, "workers": 1e8})])) == {"memory-grows"}


def test_a_loss_that_still_falls_at_the_end_is_told_from_one_that_has_come_down() -> None:
    steps = np.arange(100)
    assert "still-falling" in signs_of(curves(2 - 0.01 * steps), [])
    assert "still-falling" not in signs_of(curves(2 * np.exp(-steps / 10) + 0.3), [])


def test_a_validation_that_jumps_while_the_training_is_smooth_is_seen() -> None:
    steps, rng = np.arange(100), np.random.default_rng(0)
    train = 2 * np.exp(-steps / 30) + 0.3
    assert "train-is-smooth" in signs_of(curves(train, train * rng.uniform(0.6, 1.6, 100)), [])
    assert "train-is-smooth" not in signs_of(curves(train * rng.uniform(0.6, 1.6, 100), train * rng.uniform(0.6, 1.6, 100)), [])


def test_the_journal_of_another_time_gives_no_sign() -> None:
    finding = Finding("non-finite-weights", step=355, evidence={"onset": 345})
    early = {"kind": "finding", "code": "non-finite-loss", "step": 3, "evidence": {"input": "field 0: 1 value is Inf"}}
    assert "input-non-finite" not in signs([finding], {}, [early], 345)


def test_validation_on_inputs_of_another_scale_says_nothing_of_too_little_data() -> None:
    both = curves(np.linspace(2.0, 0.02, 60), np.linspace(36.0, 45.0, 60))
    overfits = Finding("overfitting", step=59, evidence={"onset": 5})
    scaled = Finding("preprocessing-mismatch", step=50, evidence={"onset": 0, "deviation": 1.0, "held_out_deviation": 57.6})
    assert rank([overfits], both)[0].cause.code in ("too-little-data", "labels-unrelated", "trained-too-long")
    assert [one.cause.code for one in rank([overfits, scaled], both)][:1] == ["normalisation-mismatch"]


def test_gradients_that_grow_beyond_measure_from_one_step_to_the_next_speak_for_damaged_weights() -> None:
    def exploded(first: float, **more: float) -> Finding:
        evidence = {"onset": 89, "norm": 1.6e37, "normal": 1.5, "times": 1e37, "step_before": 1.2, "first": first, **more}
        return Finding("gradient-explosion", step=99, severity="critical", evidence=evidence)

    calm = curves(np.full(100, 0.3))
    assert rank([exploded(1.6e37)], calm)[0].cause.code == diagnose([exploded(1.6e37)]).causes[0] == "weights-overwritten"
    assert diagnose([exploded(1.6e37, lr_jumped_at=88)]).causes[0] != "weights-overwritten"
    assert rank([exploded(900.0)], calm)[0].cause.code == diagnose([exploded(900.0)]).causes[0] == "learning-rate-too-high"
    clipped = Finding("gradient-explosion", step=89, evidence={"norm": 5.9e37, "limit": 82.6, "loss": 1.1e37, "lr": 0.005})
    assert rank([clipped], calm)[0].cause.code == "weights-overwritten", "as the guard reports it"


def test_a_rank_that_is_missing_because_it_is_deadlocked_is_not_blamed_on_its_collectives() -> None:
    def stalled(**more: str) -> Finding:
        return Finding("collective-stall", step=140, severity="critical", evidence={"kind": "missing", "missing": [0], **more})

    assert diagnose([stalled(missing_kind="deadlock")]).causes[0] == "deadlock"
    assert diagnose([stalled(missing_kind="gil")]).causes[0] == "stuck-compute"
    assert diagnose([stalled()]).causes[0] == "collective-mismatch"


def test_a_spike_that_came_back_is_a_remark_with_its_likely_cause_and_a_calm_run_has_neither() -> None:
    calm = np.linspace(0.36, 0.3, 300) + np.random.default_rng(0).normal(0.0, 0.02, 300)
    spiked = calm.copy()
    spiked[140] = 9.0
    assert check_up(curves(calm)).episodes == ()
    (episode,) = check_up(curves(spiked)).episodes
    assert [(one.code, one.severity) for one in episode.findings] == [("loss-spike", "info")]
    assert [one.cause.code for one in episode.diagnoses] == ["bad-batch"]


def test_what_a_loader_does_already_is_not_advised() -> None:
    loading = {"onset": 0, "fraction": 0.4, "wait_seconds": 0.02, "step_seconds": 0.05}

    def advice(**settings: Any) -> dict[str, list[str]]:
        finding = Finding("slow-loading", step=200, evidence={**loading, **settings})
        ranked = rank([finding], curves(np.linspace(2.0, 0.5, 300)))
        return {one.cause.code: [str(fix.setting) for fix in one.fixes] for one in ranked}

    assert "too-few-workers" not in advice(workers=2, cores=2), "one on every core"
    assert advice(workers=2, cores=16, on_gpu=True)["too-few-workers"] == ["num_workers", "persistent_workers", "pin_memory"]
    known = advice(workers=2, cores=16, persistent_workers=True, pin_memory=True, on_gpu=True)
    assert known["too-few-workers"] == ["num_workers"]
    on_cpu = advice(workers=0, cores=16, on_gpu=False)
    assert on_cpu["too-few-workers"] == ["num_workers"] and "heavy-transforms" not in on_cpu


def test_weights_that_jumped_were_overwritten_and_the_learning_rate_comes_after_that() -> None:
    evidence = {"onset": 150, "loss": 1.7, "normal": 0.25, "initial_loss": 2.3}
    jumped = Finding(
        "loss-divergence", step=180, severity="critical", evidence={**evidence, "weight_norm_before": 6.0, "weight_norm": np.inf}
    )
    assert diagnose([jumped]).causes[0] == "weights-overwritten"
    assert "weights-overwritten" not in diagnose([Finding("loss-divergence", step=180, evidence=evidence)]).causes


def test_compiled_code_that_waits_for_a_lock_is_a_deadlock_and_a_plain_wait_is_not() -> None:
    def first(**evidence: object) -> str:
        return diagnose([Finding("hang", step=9, severity="critical", evidence=evidence)]).causes[0]

    assert first(kind="wait", lock_in_c=True) == "deadlock"
    assert first(kind="wait") == "waits-for-something"


def test_a_warm_restart_is_no_change_of_a_setting_and_a_rate_after_the_trouble_no_cause() -> None:
    steps = np.arange(200)
    bad = Finding("non-finite-loss", step=101, evidence={"onset": 101, "recovered": True})

    def of(rate: Any) -> dict[str, str]:
        return signs_of(Curves("run", (Curve("lr", steps, rate, role="lr"),), source="csv"), [bad])

    assert "lr-jumped" not in of(0.1 * (1 - (steps % 50) / 50) + 1e-4)
    assert "lr-huge" not in of(np.where(steps < 150, 0.01, 3.0))
    assert {"lr-jumped", "lr-huge"} <= of(np.where(steps < 100, 0.01, 3.0)).keys()


def test_a_learning_rate_that_jumped_is_set_back_and_named_with_its_step_though_the_curve_is_of_blocks() -> None:
    steps = np.arange(0, 4000, 16) + 15
    curves = Curves("run", (Curve("lr", steps, np.where(steps < 2000, 0.001, 0.1), role="lr"),))
    jumped = Finding("loss-divergence", step=2060, evidence={"onset": 2003, "lr_jumped_at": 2003, "lr_before": 0.001, "lr": 0.1})
    seen = signs_of(curves, [jumped])
    assert seen["lr-jumped"] == "the learning rate jumped from 0.001 to 0.1 at step 2,003"
    offered = [fix.text for fix in LEARNING_RATE_TOO_HIGH.fixes if fix.applies(seen)]
    assert offered[0].startswith("set the learning rate back") and "lower the learning rate" not in offered


@every_case(("batch", "expected"), [("finite", True), ("unknown", True), ("non-finite", False)])
def test_a_finite_loss_with_a_gradient_that_is_not_speaks_of_the_backward_pass(batch: str, expected: bool) -> None:
    evidence = {"loss": 0.14, "norm": "nan", "weights": "finite", "input": batch, "began_in": "head"}
    signs = signs_of_journal([{"kind": "finding", "code": "non-finite-gradient", "step": 215, "evidence": evidence}], 215)
    assert ("only-the-gradient" in signs) is expected and ("began-in-a-layer" in signs) is expected
    assert ("batch" in signs.get("only-the-gradient", "")) is (batch == "finite"), "a batch that was not read is not mentioned"


def test_what_was_seen_at_the_first_bad_update_counts_though_an_evaluation_tells_of_an_earlier_step() -> None:
    evidence = {"loss": 0.07, "norm": "nan", "weights": "finite", "input": "finite"}
    row = {"kind": "finding", "code": "non-finite-gradient", "step": 148, "evidence": evidence}
    stays = Finding("non-finite-weights", step=159, severity="critical", evidence={"onset": 148, "steps_in_a_row": 12})
    collapsed = Finding(
        "metric-collapse", step=190, severity="critical", evidence={"onset": 115, "split": "val", "metric": "loss"}
    )
    bad = Finding("non-finite-gradient", step=148, severity="critical", evidence={"onset": 148, **evidence})
    causes = [one.cause.code for one in rank([collapsed, stays, bad], curves([0.07] * 160), around=[row])]
    assert causes[0] == "division-by-zero" and "weights-damaged" not in causes


def test_weights_that_are_not_finite_after_a_jump_of_the_learning_rate_are_not_called_damaged() -> None:
    evidence = {"onset": 120, "bad_tensors": 4, "weights": "non-finite"}
    jump = {"lr_jumped_at": 110, "lr_before": 0.0004, "lr": 0.04}
    for more, expected in ((jump, "learning-rate-too-high"), ({}, "weights-damaged")):
        bad = Finding("non-finite-weights", step=120, severity="critical", evidence=evidence | more)
        assert rank([bad], curves([19.4] * 120))[0].cause.code == expected
