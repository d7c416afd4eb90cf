"""Which checkpoint is recommended, on hand-made runs. Stories with real files: tests/unit/cli/test_checkpoints_choose.py."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import torch
from every_case import every_case

from holdfast.checkpoints.contents import State, Trouble
from holdfast.checkpoints.formats.find import find_checkpoints
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.safetensors import Tensors
from holdfast.checkpoints.summary import Summary
from holdfast.checkpoints.verify import BadTensor, Verdict, verify
from holdfast.checkpoints.write import write_checkpoint
from holdfast.recovery.choosing.candidates import Candidate, gather
from holdfast.recovery.choosing.choose import choose, new_folder
from holdfast.recovery.choosing.history import Change, History, Noted, Series, Undone
from holdfast.recovery.choosing.options import Choice
from holdfast.signals.metric_direction import better

FULL = frozenset({"weights", "optimizer", "scheduler"})


def saved(
    step: int | None, state: State = "clean", *, name: str | None = None, number: int | None = None, **facts: Any
) -> Candidate:
    """A checkpoint, as if it had been opened and verified."""
    path = Path("run/checkpoints") / (name or f"step-{step or 0:06d}")
    troubles = [Trouble(state, f"It is {state}.", "use an older one")] if state != "clean" else []
    bad = [BadTensor("layer.weight", 3, 0, 64)] if state == "non-finite" else []
    verdict = Verdict(path=path, state=state, troubles=troubles, bad=bad, tensors=12, checked=True)
    given: dict[str, Any] = {"saved_at": float(step or 0), "holds": FULL, **facts}
    if isinstance(given.get("metric"), float):
        given["metric"] = ("val_acc", given["metric"])
    return Candidate(path=path, verdict=verdict, summary=Summary(step=step, **given), number=number)


def accuracy(*values: float, every: int = 1000) -> Series:
    """An accuracy, evaluated every so many steps."""
    return Series("val/acc", tuple((every * (index + 1), value) for index, value in enumerate(values)), lower_is_better=False)


def chosen(choice: Choice) -> tuple[str, int | None]:
    """The kind and the step that are recommended."""
    return choice.recommended, choice.option.position


def why(choice: Choice, step: int) -> str:
    """Why a step was passed over."""
    return next(one.why for one in choice.rejected if one.position == step)


DECLINE = accuracy(0.5, 0.6, 0.64, 0.62, 0.58, 0.5, 0.002)
SEVEN = [saved(1000 * index) for index in range(1, 8)]


def test_a_healthy_run_that_was_killed_goes_on_from_the_newest_with_nothing_changed() -> None:
    choice = choose(SEVEN[:4], History(metrics=(accuracy(0.5, 0.6, 0.63, 0.64),), last=4100, end="was killed (SIGKILL)"))
    assert chosen(choice) == ("newest", 4000)
    assert choice.option.settings == {}, "the learning rate of a run that was well is not lowered"
    assert "killed (SIGKILL)" in choice.option.because[0]
    assert "100 later steps are lost" in choice.option.because


def test_a_torn_newest_is_rejected_for_the_one_before() -> None:
    choice = choose([*SEVEN[:2], saved(3000, "torn")], None)
    assert chosen(choice) == ("newest", 2000)
    assert why(choice, 3000) == "It is torn."


@every_case("state", ["non-finite", "torn", "unreadable", "unsafe"])
def test_the_best_one_is_never_offered_if_it_is_not_clean(state: State) -> None:
    choice = choose([saved(1000, metric=0.6), saved(2000, state, metric=0.9), saved(3000, metric=0.61)], better=better)
    assert chosen(choice) == ("newest", 3000)
    assert all(option.position != 2000 for option in choice.options)


def test_weights_that_are_not_finite_at_the_end_are_trouble_even_without_a_log() -> None:
    choice = choose([saved(1000, metric=0.6), saved(2000, metric=0.64), saved(3000, "non-finite")], better=better)
    assert chosen(choice) == ("best", 2000)
    assert choice.option.settings["lr"]["value"] == 0.75
    assert choice.setbacks[0].code == "non-finite-weights"


def test_a_collapse_after_a_change_goes_back_to_before_the_change() -> None:
    history = History(metrics=(DECLINE,), changes=(Change(2500, "deep supervision"),), last=7100)
    choice = choose(SEVEN, history)
    assert chosen(choice) == ("before-change", 2000), "step 3000 is the best, and was trained with the change"
    assert "deep supervision" in " ".join(choice.option.because)
    assert choice.option.settings["lr"] == {"op": "multiply", "value": 0.75}
    assert choice.option.settings["warmup_epochs"] == {"op": "set", "value": 5}
    best = next(option for option in choice.options if option.kind == "best")
    assert best.position == 3000 and best.why_not == "it was saved after the change"
    assert why(choice, 5000) == "saved after step 3,000, after the problem began"


def test_a_change_long_before_the_decline_is_not_blamed_for_it() -> None:
    values = (0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.62, 0.64, 0.6, 0.5, 0.3, 0.01)
    history = History(metrics=(accuracy(*values),), changes=(Change(1500, "more augmentation"),))
    choice = choose([saved(1000 * index) for index in range(1, 14)], history)
    assert chosen(choice) == ("best", 9000)


def test_the_learning_rate_that_goes_with_a_change_is_taken_if_it_is_lower() -> None:
    change = Change(3000, "deep supervision with EMA", 0.7, "gradients grew 1.43 times")
    choice = choose(SEVEN, History(metrics=(DECLINE,), changes=(change,), rates=((0, 0.001),)))
    assert choice.option.settings["lr"] == {"op": "multiply", "value": 0.7, "was": 0.001, "becomes": 0.0007}
    assert "gradients grew 1.43 times" in " ".join(choice.option.because)


def test_averaged_weights_want_thirty_percent_less_after_a_collapse() -> None:
    with_averages = [saved(1000 * index, holds=FULL | {"ema"}) for index in range(1, 8)]
    assert choose(with_averages, History(metrics=(DECLINE,))).option.settings["lr"]["value"] == 0.7


def test_a_decline_without_a_known_change_goes_back_to_the_best() -> None:
    values = (0.5, 0.6, 0.64, 0.63, 0.4, 0.3, 0.2)
    choice = choose(SEVEN, History(metrics=(accuracy(*values),)))
    assert chosen(choice)[0] == "best"
    assert choice.option.position in (3000, 4000)
    assert "warmup_epochs" not in choice.option.settings, "a warm-up is for a collapse"
    earlier = next(option for option in choice.options if option.kind == "earlier")
    assert earlier.position == 2000 and "fails again" in earlier.why_not


def test_a_metric_that_falls_while_the_loss_does_too_is_called_overfitting() -> None:
    values = (0.5, 0.6, 0.64, 0.55, 0.45, 0.3, 0.2)
    losses = tuple((step, 1000.0 / step) for step in range(100, 7100, 100))
    choice = choose(SEVEN, History(metrics=(accuracy(*values),), losses=losses))
    assert chosen(choice) == ("best", 3000)
    assert any("overfitting" in words for words in choice.option.because)


def test_a_metric_that_falls_at_once_is_not_called_overfitting() -> None:
    losses = tuple((step, 1000.0 / step) for step in range(100, 7100, 100))
    choice = choose(SEVEN, History(metrics=(accuracy(0.5, 0.6, 0.64, 0.2, 0.2, 0.2, 0.2),), losses=losses))
    assert chosen(choice) == ("best", 3000) and not any("overfitting" in words for words in choice.option.because)


def test_a_metric_at_the_level_of_chance_has_fallen_though_it_is_not_nought() -> None:
    choice = choose(SEVEN, History(metrics=(accuracy(0.92, 0.94, 0.95, 0.3, 0.31, 0.3, 0.3),)))
    assert chosen(choice) == ("best", 3000)


def test_a_single_bad_evaluation_at_the_end_is_not_gone_on_from_and_no_reason_to_change_anything() -> None:
    choice = choose(SEVEN[:5], History(metrics=(accuracy(0.8, 0.9, 0.92, 0.95, 0.3),)))
    assert chosen(choice) == ("newest", 4000) and choice.option.settings == {}
    assert any("possibly noise" in words for words in choice.option.because)


@every_case("seed", range(30))
def test_ordinary_noise_of_a_metric_is_no_reason_to_go_back(seed: int) -> None:
    dice = random.Random(seed)
    values = [0.9 - 0.8 * 0.7**index + dice.gauss(0, 0.01) for index in range(12)]
    choice = choose([saved(1000 * index) for index in range(1, 13)], History(metrics=(accuracy(*values),)))
    assert chosen(choice) == ("newest", 12000)


def test_a_single_bad_evaluation_that_came_back_changes_nothing_but_its_own_checkpoint() -> None:
    series = accuracy(0.5, 0.6, 0.64, 0.01, 0.65, 0.66)
    choice = choose(SEVEN[:6], History(metrics=(series,)))
    assert chosen(choice) == ("newest", 6000)
    assert why(choice, 4000) == "saved after step 3,000, after the problem began"


def test_a_loss_that_rises_is_judged_by_what_is_better_low() -> None:
    loss = Series(
        "val/loss", tuple((1000 * i, v) for i, v in enumerate((2.3, 1.0, 0.5, 0.45, 2.2, 2.3), 1)), lower_is_better=True
    )
    choice = choose(SEVEN[:6], History(metrics=(loss,)))
    assert chosen(choice) == ("best", 4000)


def test_a_training_loss_that_became_nan_and_stayed_is_trouble() -> None:
    losses = ((1000, 1.0), (2000, 0.5), (3000, 0.4), *((step, float("nan")) for step in (4000, 5000, 6000)))
    choice = choose(SEVEN[:6], History(losses=losses))
    assert chosen(choice) == ("best", 3000)
    fresh = choice.options[-1]
    assert fresh.kind == "fresh" and fresh.settings["lr"]["value"] == 0.1


def test_a_divergence_of_the_journal_is_gone_back_from_with_a_margin() -> None:
    finding = Noted(2040, "loss-divergence", "critical", onset=2001)
    choice = choose([saved(1000), saved(1990), saved(2000), saved(2030)], History(findings=(finding,), judged=True))
    assert chosen(choice) == ("best", 1990)
    assert choice.option.settings["lr"]["value"] == 0.75


def test_after_an_explosion_the_learning_rate_is_cut_further_and_gradients_are_clipped() -> None:
    findings = (Noted(2000, "gradient-explosion", "warning", 2000), Noted(2040, "loss-divergence", "critical", 2001))
    settings = choose(SEVEN[:3], History(findings=findings, judged=True)).option.settings
    assert settings["lr"]["value"] == 0.25 and settings["clip_norm"]["value"] == 1.0


def test_what_a_roll_back_undid_is_no_trouble_any_more() -> None:
    finding = Noted(2040, "loss-divergence", "critical", onset=2001)
    history = History(findings=(finding,), undone=(Undone(1950, 2050),), judged=True, last=5000)
    choice = choose([saved(1000), saved(2000), saved(2030), saved(3000)], history)
    assert chosen(choice) == ("newest", 3000)
    assert why(choice, 2030) == "saved after step 1,950, after the problem began"


def test_a_bad_batch_that_passed_is_no_trouble() -> None:
    losses = tuple((step, float("nan") if step == 2100 else 1.0) for step in range(3000))
    history = History(findings=(Noted(2100, "non-finite-loss", "critical", 2100),), losses=losses, judged=True)
    assert chosen(choose(SEVEN[:3], history)) == ("newest", 3000)


def test_a_last_loss_that_is_nan_is_no_trouble_in_a_watched_run_and_three_are() -> None:
    for count, expected in ((1, ("newest", 3000)), (3, ("best", 3000))):
        losses = tuple((step, float("nan") if step >= 3100 - count else 1.0) for step in range(3100))
        assert chosen(choose(SEVEN[:3], History(losses=losses, judged=True))) == expected


def test_running_out_of_memory_is_no_reason_to_lower_the_learning_rate_but_is_told() -> None:
    history = History(findings=(Noted(3010, "gpu-out-of-memory", "critical", 3010),), judged=True, last=3010)
    choice = choose(SEVEN[:3], history)
    assert chosen(choice) == ("newest", 3000) and choice.option.settings == {}
    assert any("GPU memory" in words for words in choice.option.because)


def test_if_all_are_from_within_the_trouble_a_fresh_start_is_better() -> None:
    choice = choose(SEVEN[3:], History(metrics=(DECLINE,)))
    assert choice.recommended == "fresh" and choice.option.candidate is None
    assert "all clean checkpoints are from after step 3,000" in choice.option.because[0]
    assert choice.clean == 4


def test_if_none_is_clean_a_fresh_start_with_safe_settings_is_all_that_is_left() -> None:
    scaled = frozenset({"weights", "optimizer", "scaler"})
    choice = choose([saved(1000, "torn", holds=scaled), saved(2000, "unsafe")])
    assert choice.recommended == "fresh" and choice.clean == 0
    assert {name: one["value"] for name, one in choice.option.settings.items()} == {
        "lr": 0.25, "warmup_epochs": 5, "clip_norm": 1.0, "dtype": "bfloat16",
    }  # fmt: skip
    assert choice.option.because == ("no checkpoint is clean: 1 torn, 1 unsafe",)


def test_weights_alone_come_with_a_warm_up_and_a_word_about_the_optimizer() -> None:
    choice = choose([saved(1000, holds=frozenset({"weights"})), saved(2000, holds=frozenset({"weights"}))])
    assert chosen(choice) == ("newest", 2000)
    assert choice.option.settings == {"warmup_epochs": {"op": "set", "value": 5}}
    assert any("weights only" in words for words in choice.option.because)


def test_one_that_holds_everything_is_taken_before_newer_weights_alone_unless_it_is_much_older() -> None:
    weights = frozenset({"weights"})
    assert chosen(choose([saved(950), saved(1000, holds=weights)])) == ("newest", 950)
    assert chosen(choose([saved(100), saved(1000, holds=weights)])) == ("newest", 1000)


def test_of_equally_good_ones_the_newer_is_taken() -> None:
    values = (0.5, 0.64, 0.64, 0.002)
    choice = choose(SEVEN[:4], History(metrics=(accuracy(*values),)))
    assert chosen(choice) == ("best", 3000)


def test_a_file_called_last_that_is_a_copy_of_the_newest_is_told_as_such() -> None:
    choice = choose([saved(1000), saved(2000, name="epoch=1-step=2000.ckpt"), saved(2000, name="last.ckpt")])
    assert choice.option.candidate is not None and choice.option.candidate.path.name == "epoch=1-step=2000.ckpt"
    assert why(choice, 2000) == "the same step as epoch=1-step=2000.ckpt"


def test_the_second_save_of_a_step_stands_for_the_first() -> None:
    choice = choose([saved(2000, saved_at=10.0), saved(2000, name="step-002000-2", saved_at=20.0)])
    assert choice.option.candidate is not None and choice.option.candidate.path.name == "step-002000-2"


def test_a_training_that_was_set_back_goes_on_from_what_it_wrote_last() -> None:
    choice = choose([saved(5000, number=5), saved(6000, number=6), saved(3000, number=7), saved(2000, number=2)])
    assert chosen(choice) == ("newest", 3000)
    assert why(choice, 6000) == "the run went back to step 3,000 after it"


def test_of_two_metrics_the_asked_one_decides() -> None:
    loss = Series("val/loss", ((1000, 0.5), (2000, 0.4), (3000, 0.45)), lower_is_better=True)
    acc = Series("val/acc", ((1000, 0.7), (2000, 0.6), (3000, 0.65)), lower_is_better=False)
    history = History(metrics=(loss, acc), findings=(Noted(3100, "loss-divergence", "critical", 3050),), judged=True)
    assert chosen(choose(SEVEN[:3], history)) == ("best", 1000)
    assert chosen(choose(SEVEN[:3], history.with_metric("val/loss", None))) == ("best", 2000)
    assert chosen(choose(SEVEN[:3], history.with_metric("val_loss", False))) == ("best", 1000)


def test_a_decline_of_another_metric_than_the_one_that_counts_is_no_trouble() -> None:
    loss = Series("val/loss", ((1000, 0.5), (2000, 0.6), (3000, 0.8), (4000, 1.2)), lower_is_better=True)
    finding = Noted(4000, "metric-decline", "warning", 2000, "val/loss")
    history = History(metrics=(loss, accuracy(0.5, 0.6, 0.62, 0.63)), findings=(finding,), judged=True)
    assert chosen(choose(SEVEN[:4], history)) == ("newest", 4000)


def test_without_steps_the_epochs_count() -> None:
    series = Series("metrics/mAP50-95(B)", ((0, 0.1), (1, 0.3), (2, 0.35), (3, 0.01)), lower_is_better=False)
    files = [saved(None, name=f"epoch{epoch}.pt", epoch=epoch) for epoch in range(4)]
    choice = choose(files, History(unit="epoch", metrics=(series,)))
    assert chosen(choice) == ("best", 2)


def test_one_that_does_not_say_its_step_is_not_trusted_after_trouble() -> None:
    choice = choose([*SEVEN[:3], saved(None, name="model.safetensors", saved_at=9e9)], History(metrics=(DECLINE,)))
    assert chosen(choice) == ("best", 3000)
    assert "does not say its step" in next(one.why for one in choice.rejected if one.position is None)


def test_a_file_without_a_model_is_nothing_to_go_on_from() -> None:
    choice = choose([saved(1000), saved(2000, holds=frozenset(), name="data.pt")])
    assert chosen(choice) == ("newest", 1000)
    assert why(choice, 2000) == "it holds no weights of a model"


def test_a_warm_up_of_five_long_epochs_becomes_one_of_steps() -> None:
    history = History(metrics=(DECLINE,), epochs=((0, 5000), (1, 7000)), last=7000)
    assert choose(SEVEN, history).option.settings["warmup_steps"] == {"op": "set", "value": 350}


@every_case("seed", range(300))
def test_what_is_recommended_is_clean_and_from_before_the_trouble_that_it_names(seed: int) -> None:
    dice = random.Random(seed)
    states: list[State] = ["clean", "clean", "clean", "non-finite", "torn", "unreadable", "unsafe"]
    steps = sorted(dice.sample(range(100, 9000, 100), dice.randint(1, 9)))
    candidates = [
        saved(
            step,
            dice.choice(states),
            metric=dice.random() if dice.random() < 0.5 else None,
            holds=dice.choice([FULL, frozenset({"weights"})]),
        )
        for step in steps
    ]
    values = [dice.random() ** dice.choice([1, 8]) for _ in range(dice.randint(0, 9))]
    codes = ("loss-divergence", "metric-collapse", "metric-decline", "non-finite-weights", "gradient-explosion", "hang")
    findings = [
        Noted(s := dice.randint(0, 9000), dice.choice(codes), "critical", max(0, s - 50)) for _ in range(dice.randint(0, 3))
    ]
    history = History(
        metrics=(accuracy(*values),) if values else (),
        changes=tuple(Change(dice.randint(0, 9000), "batch 32 -> 64") for _ in range(dice.randint(0, 2))),
        findings=tuple(findings),
        undone=tuple(Undone(at - 100, at) for at in (dice.randint(100, 9000) for _ in range(dice.randint(0, 1)))),
        judged=dice.random() < 0.5,
    )
    choice = choose(candidates, history, better=better)
    for option in choice.options:
        if option.candidate is None:
            continue
        assert option.candidate.clean
        assert option.position is not None
        assert all(not trouble.holds(option.position) for trouble in choice.setbacks)
        assert option.before is None or option.position <= option.before
    lasting = [trouble for trouble in choice.setbacks if trouble.lasts]
    assert (choice.recommended == "newest") <= (not lasting), "a run in trouble never goes on as it was"
    named = {id(one.candidate) for one in choice.rejected} | {id(choice.option.candidate)}
    assert named >= {id(one) for one in candidates}, "everything that was not taken is named"


def test_what_each_rank_wrote_for_itself_is_one_checkpoint_and_as_bad_as_the_worst_of_them(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        for folder in (tmp_path, tmp_path / "rank-1"):
            parts = {"weights": Tensors({"layer.weight": torch.ones(4)})}
            write_checkpoint(folder, step, {**parts, "training": {"optimizers": [{"state": {}}]}})
    damaged = next(path for path in (tmp_path / "rank-1/step-000030").iterdir() if path.name.startswith("weights"))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    shutil.rmtree(tmp_path / "rank-1/step-000040")
    contents = [open_checkpoint(path) for path in find_checkpoints(tmp_path)]
    found = gather((one, verify(one)) for one in contents)
    assert {one.path.name: one.verdict.state for one in found} == {
        "step-000010": "clean", "step-000020": "clean", "step-000030": "torn", "step-000040": "torn",
    }  # fmt: skip
    choice = choose(found)
    assert chosen(choice) == ("newest", 20)
    assert why(choice, 40) == "The part of rank 1 is missing."


def test_a_recovery_goes_into_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    assert new_folder(run) == new_folder(run / "checkpoints") == tmp_path / "run-resumed"
    (tmp_path / "run-resumed").mkdir()
    assert new_folder(run) == new_folder(tmp_path / "run-resumed") == tmp_path / "run-resumed-2"
    (tmp_path / "run-resumed-2").symlink_to("nowhere")
    assert new_folder(run) == tmp_path / "run-resumed-3"
