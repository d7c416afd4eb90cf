"""Text logs of terminals, launchers and progress bars."""

from __future__ import annotations

import numpy as np
from every_case import every_case

from holdfast.logs.roles import role_of
from holdfast.logs.rows import curves_of
from holdfast.logs.text_file import read_text
from holdfast.signals.curves import Curves


def only(*lines: str, bars: bool = False) -> Curves:
    (curves,) = curves_of(read_text(lines, bars=bars), name="log", source="text")
    return curves


def losses(curves: Curves) -> list[float]:
    assert curves.train_loss is not None
    return list(curves.train_loss.values)


@every_case(
    ("lines", "wanted"),
    [
        (["epoch 1 loss -> 0.5", "epoch 2 loss -> 0.25"], [0.5, 0.25]),
        (["1: 500.2, 510.5 avg loss, 0.001 rate", "2: 400.2, 480.5 avg loss, 0.001 rate"], [510.5, 480.5]),
        (["steps: 10 loss: 0.5 iter time (s): 1.2", "steps: 20 loss: 0.25 iter time (s): 1.2"], [0.5, 0.25]),
        (["2024-01-01 10:00:00,123 INFO step=1 loss=0.5", "2024-01-01 10:00:01,456 INFO step=2 loss=0.4"], [0.5, 0.4]),
        (["step 1 loss: tensor(0.5, device='cuda:0', grad_fn=<NllLoss>)", "step 2 loss: tensor(0.25)"], [0.5, 0.25]),
        (["{'step': 1, 'loss': np.float64(0.5)}", "{'step': 2, 'loss': np.float64(0.25)}"], [0.5, 0.25]),
        (["step 1: the loss is 0.5", "step 2: the loss is 0.25"], [0.5, 0.25]),
        (["[10/500] Train Loss 0.5 (0.6)", "[20/500] Train Loss 0.4 (0.5)"], [0.5, 0.4]),
        (["Step: 100, Loss: 1.5e-05, LR: 1e-4", "Step: 200, Loss: 1.25e-05, LR: 1e-4"], [1.5e-5, 1.25e-5]),
        (["Epoch: [3][ 0/391] Loss 2.3 (2.4) Acc@1 10.5", "Epoch: [4][ 0/391] Loss 2.1 (2.2) Acc@1 12.5"], [2.3, 2.1]),
    ],
    ids=["arrows", "darknet", "deepspeed", "timestamps", "tensor", "numpy", "words", "brackets", "exponents", "imagenet"],
)  # fmt: skip
def test_a_loss_is_read_however_the_line_is_written(lines: list[str], wanted: list[float]) -> None:
    assert losses(only(*lines)) == wanted


@every_case(
    ("train", "held_out"),
    [
        (
            "| train | epoch 00{n} | loss {n}.5 | ppl 3.2",
            "| valid | epoch 00{n} | valid on 'valid' subset | loss {n}.75 | ppl 3.1",
        ),
        ("Train Epoch: {n} [0/60000 (0%)]\tLoss: {n}.5", "Test set: Average loss: {n}.75, Accuracy: 9800/10000 (98%)"),
        ("epoch {n} | train: loss {n}.5 acc 0.9", "epoch {n} | val: loss {n}.75 acc 0.8"),
        ("epoch {n} train: loss {n}.5 acc 0.9 | val: loss {n}.75 acc 0.8", ""),
    ],
    ids=["fairseq", "mnist", "headings", "one line"],
)
def test_a_loss_under_the_heading_of_a_split_belongs_to_it(train: str, held_out: str) -> None:
    curves = only(*(line.format(n=n) for n in range(1, 5) for line in (train, held_out)))
    assert losses(curves) == [1.5, 2.5, 3.5, 4.5]
    assert curves.val_loss is not None and list(curves.val_loss.values) == [1.75, 2.75, 3.75, 4.75]


def test_the_scale_of_the_loss_is_no_loss() -> None:
    curves = only(*(f" iteration {n} | lm loss: {n}.5E+00 | loss scale: 65536.0 | grad norm: 1.2 |" for n in range(1, 4)))
    assert losses(curves) == [1.5, 2.5, 3.5] and [curve.name for curve in curves.of("loss")] == ["lm loss"]


def test_names_that_hold_digits_stay_apart() -> None:
    lines = [f"step {n} loss_1: {n}.5 loss_2: {n}.25 mAP50: 0.{n} mAP50-95: 0.0{n} F1 0.3 R2: 0.2" for n in range(1, 4)]
    curves = only(*lines)
    values = {curve.name: list(curve.values) for curve in curves.curves}
    assert values["loss_1"] == [1.5, 2.5, 3.5] and values["loss_2"] == [1.25, 2.25, 3.25]
    assert values["mAP50"] == [0.1, 0.2, 0.3] and values["mAP50-95"] == [0.01, 0.02, 0.03]
    assert values["F1"] == [0.3] * 3 and values["R2"] == [0.2] * 3


def test_of_several_ranks_that_write_through_each_other_the_first_is_taken() -> None:
    lines = []
    for step in range(1, 5):
        lines += [f"[rank{rank}]: step {step} loss: {step + rank / 10}" for rank in (1, 0, 3, 2)]
    assert losses(only(*lines)) == [1.0, 2.0, 3.0, 4.0]
    assert losses(only(*(line for line in lines if "rank2" in line))) == [1.2, 2.2, 3.2, 4.2]


def test_of_a_progress_bar_the_end_counts() -> None:
    lines = []
    for epoch in (1, 2):
        lines += [
            f"Epoch {epoch}:  50%|████     | 5/10 [00:01<00:01, loss=9.5]",
            f"Epoch {epoch}: 100%|█████████| 10/10 [00:02<00:00, loss=0.{epoch}]",
        ]
    assert losses(only(*lines)) == [0.1, 0.2]
    keras = [
        "Epoch 1/2",
        "  5/10 ━━━━━──── 1s 10ms/step - loss: 9.0",
        " 10/10 ━━━━━━━━━ 2s 10ms/step - loss: 0.5 - val_loss: 0.6",
    ]
    assert losses(only(*keras)) == [0.5]


def test_a_log_of_bars_alone_has_a_point_for_each_step_of_the_bar() -> None:
    lines = [f" {n}%|███    | {n}/100 [00:0{n}<01:00, 1.2it/s, loss={9 - n}]" for n in range(1, 6)]
    curves = only(*lines, bars=True)
    assert losses(curves) == [8, 7, 6, 5, 4]
    assert curves.train_loss is not None and list(curves.train_loss.steps) == [1, 2, 3, 4, 5]


def test_percent_signs_and_units_of_memory_are_understood() -> None:
    curves = only(*(f"Epoch {n} loss: 0.5 val accuracy: 9{n}.5% gpu mem: 7.5G" for n in range(1, 4)))
    assert list(curves.metrics[0].values) == [91.5, 92.5, 93.5]
    np.testing.assert_array_equal(curves.of("memory")[0].values, 7.5 * 2**30)


def test_a_parameter_count_or_a_time_is_no_loss() -> None:
    assert not list(read_text(["Model has 11.2M parameters", "training took 12.5 s", "batch size 32", "seed: 42"]))


def test_a_loss_at_a_step_is_read_with_its_step_and_accumulation_is_no_accuracy() -> None:
    lines = [
        "loss at 404 1.796875",
        "2024-12-25 06:53:53.897 | INFO | __main__:main:576 - Eval loss at step 1000: 5.0212,tokens_seen: 99979486",
        "grad_accu_steps  20",
    ]
    assert list(read_text(lines)) == [{"step": 404.0, "loss": 1.796875}, {"step": 1000.0, "eval loss": 5.0212}]
    assert role_of("grad_accu_steps").role == "other"
