"""What is read from the logs that lie beside checkpoints, and what is made of odd ones."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from every_case import every_case

from holdfast.recovery.choosing.history import Change, History, Noted, Series, find_name, lineage
from holdfast.recovery.choosing.logs_beside import history_of, read_history, run_folder_of
from holdfast.recovery.choosing.setbacks import Setback, of_metric, setbacks, suspect
from holdfast.signals.curves import Curve, Curves

LIGHTNING = """epoch,lr-Adam,step,train_loss,val_acc,val_loss
,0.01,0,,,
0,,3,0.4988,,
0,,7,0.4264,,
0,,7,,0.828125,0.4581
,0.001,8,,,
1,,11,0.4277,,
1,,15,,0.875,0.4073
"""
ULTRALYTICS = """  epoch, train/box_loss, train/cls_loss, metrics/mAP50(B), metrics/mAP50-95(B), val/box_loss, lr/pg0
      1,            1.5,            2.5,             0.20,                0.11,          1.9,   0.01
      2,            1.2,            2.0,             0.50,                0.31,          1.5,  0.009
"""


def table(folder: Path, text: str, name: str = "metrics.csv") -> History:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    found = read_history(folder, [])
    assert found is not None
    return found


def test_lightning_counts_evaluations_as_its_checkpoints_count_steps(tmp_path: Path) -> None:
    history = table(tmp_path, LIGHTNING)
    assert history.unit == "step"
    assert history.metric("val_acc") == Series("val_acc", ((8, 0.828125), (16, 0.875)), lower_is_better=False)
    assert {series.name for series in history.metrics} == {"val_acc", "val_loss"}, "the training loss is no metric"
    assert history.losses == ((3, 0.4988), (7, 0.4264), (11, 0.4277))
    assert (history.rate_at(7), history.rate_at(8)) == (0.01, 0.001)
    assert history.epochs == ((0, 7), (1, 15)) and history.last == 16
    assert history.sources == (str(tmp_path / "metrics.csv"),)


def test_ultralytics_counts_epochs_from_one_in_its_log_and_from_zero_in_its_checkpoints(tmp_path: Path) -> None:
    history = table(tmp_path, ULTRALYTICS, "results.csv")
    assert history.unit == "epoch" and history.last == 1
    best = history.metric()
    assert best is not None and best.name == "metrics/mAP50-95(B)" and best.points == ((0, 0.11), (1, 0.31))
    assert history.losses == ((0, 4.0), (1, 3.2)), "a loss in parts is their sum"


def test_the_newest_state_of_a_trainer_that_can_be_read_tells_all(tmp_path: Path) -> None:
    rows = [
        {"epoch": 0.6, "loss": 0.4, "learning_rate": 0.04, "step": 500},
        {"epoch": 0.6, "eval_loss": 0.3, "eval_score": 0.7, "eval_runtime": 1.0, "step": 500},
        {"epoch": 1.2, "eval_loss": 0.2, "eval_score": 0.6, "eval_runtime": 1.0, "step": 1000},
    ]
    folders = [tmp_path / f"checkpoint-{step}" for step in (500, 1000, 1500)]
    for folder, step in zip(folders, (500, 1000, 1500), strict=True):
        folder.mkdir()
        state = {"global_step": step, "best_metric": 0.6, "log_history": rows[: 2 if step == 500 else 3]}
        text = json.dumps(state)
        (folder / "trainer_state.json").write_text(text if step != 1500 else text[: len(text) // 2])
    history = read_history(tmp_path, folders)
    assert history is not None and history.sources == (str(tmp_path / "checkpoint-1000" / "trainer_state.json"),)
    assert history.monitored == "eval_score", "the metric whose value the trainer calls the best"
    series = history.metric()
    assert series is not None and series.lower_is_better is True, "the best is the lowest"
    assert history.rate_at(500) == 0.04 and history.last == 1000
    assert "eval_runtime" not in [one.name for one in history.metrics]


def test_a_nan_in_a_log_stays_visible(tmp_path: Path) -> None:
    history = table(tmp_path, "step,train_loss,val_loss\n1,0.5,0.5\n2,nan,nan\n", "log.csv")
    assert math.isnan(history.losses[-1][1])
    (trouble,) = setbacks(history)
    assert trouble.code == "non-finite-loss" and trouble.begin == 1


@every_case(
    "text",
    [
        "",
        "\n\n",
        "a,b\n1,2\n",
        "step\n",
        "step,val_loss\nx,y\n",
        'step,"val_loss\n1,2',
        "\0\0\0,\0\n1,2\n",
        "step,val_loss\n-3,1\nnan,2\n",
    ],
)
def test_a_table_that_is_no_log_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics.csv").write_text(text)
    history = read_history(tmp_path, [])
    assert history is None or not history.losses


@every_case("content", ["[]", "{}", '{"log_history": 3}', '{"log_history": [3, null, {"step": "x"}]}', "{"])
def test_a_state_that_is_no_state_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    assert read_history(tmp_path, [tmp_path]) is None


@every_case("end", ["300,0.", "300,", "300", "3", ""])
def test_a_line_that_was_cut_off_is_left_out_and_takes_no_other_with_it(tmp_path: Path, end: str) -> None:
    history = table(tmp_path, f"step,val_acc\n100,0.5\n200,0.6\n{end}", "history.csv")
    assert history.metrics[0].points == ((100, 0.5), (200, 0.6)), "an accuracy of 0. would look like a collapse"


def test_a_run_that_began_again_from_an_earlier_step_counts_as_it_went_on(tmp_path: Path) -> None:
    history = table(tmp_path, "step,val_acc\n100,0.5\n200,0.6\n300,0.1\n200,0.61\n300,0.7\n", "log.csv")
    assert history.metrics[0].points == ((100, 0.5), (200, 0.61), (300, 0.7))
    assert lineage([(1, 1.0), (2, 2.0), (2, 3.0)]) == ((1, 1.0), (2, 3.0))


def test_the_folder_of_a_run_is_the_nearest_one_that_is_marked_as_one(tmp_path: Path) -> None:
    for version in (0, 1):
        folder = tmp_path / f"lightning_logs/version_{version}/checkpoints"
        folder.mkdir(parents=True)
        (folder.parent / "metrics.csv").write_text(LIGHTNING)
        top = tmp_path / "lightning_logs"
        assert run_folder_of(folder / "last.ckpt", top) == folder.parent
        assert run_folder_of(folder / "last.ckpt", folder) == folder.parent
    assert run_folder_of(tmp_path / "models/a.pt", tmp_path / "models") == tmp_path / "models"


@every_case(
    ("wanted", "found"),
    [("val/acc", "val/acc"), ("val_acc", "val/acc"), ("ACC", "val/acc"), ("loss", None), ("nothing", None)],
)
def test_a_metric_is_found_by_what_people_type(wanted: str, found: str | None) -> None:
    assert find_name(wanted, ["val/acc", "val/loss", "train/loss"]) == found


def test_a_value_is_that_of_the_evaluation_nearest_to_the_checkpoint_and_not_of_one_far_away() -> None:
    series = Series("val/acc", ((1000, 0.5), (2000, 0.6), (3000, 0.7)), lower_is_better=False)
    assert [series.at(step) for step in (1000, 1400, 1600, 3500)] == [0.5, 0.5, 0.6, 0.7]
    assert series.at(5000) is None and series.at(0) is None
    assert Series("val/acc", ()).at(3) is None


def lower(*values: float) -> Series:
    return Series("val/loss", tuple(enumerate(values)), lower_is_better=True)


def higher(*values: float) -> Series:
    return Series("val/acc", tuple(enumerate(values)), lower_is_better=False)


@every_case(
    ("series", "code", "begin"),
    [
        (higher(0.5, 0.6, 0.64, 0.002), "metric-collapse", 2),
        (higher(0.5, 0.6, 0.64, 0.62, 0.6, 0.61, 0.5, 0.002), "metric-collapse", 2),
        (higher(0.5, 0.64, 0.635, 0.638, 0.64, 0.001, 0.0, 0.001), "metric-collapse", 4),
        (higher(0.5, 0.6, 0.64, math.nan), "metric-collapse", 2),
        (higher(0.1, 0.2, 0.3, 0.64, 0.5, 0.3, 0.1), "metric-decline", 3),
        (lower(2.3, 1.0, 0.5, 2.29), "metric-collapse", 2),
        (lower(2.3, 1.0, 0.5, 0.7, 1.0, 1.5), "metric-decline", 2),
    ],
)
def test_where_a_metric_went_wrong(series: Series, code: str, begin: int) -> None:
    found = of_metric(series)
    assert found is not None and (found.code, found.begin) == (code, begin)
    assert found.seen > begin and found.lasts


@every_case(
    "series",
    [
        higher(0.1, 0.3, 0.5, 0.6),
        higher(0.5, 0.6, 0.64, 0.002, 0.65),
        higher(0.9, 0.91, 0.905, 0.9, 0.895, 0.91),
        higher(0.1, 0.2, 0.4, 0.64, 0.5, 0.3, 0.1, 0.6),
        higher(0.0, 0.0, 0.0, 0.0),
        higher(0.5, 0.002),
        lower(2.3, 1.0, 0.5, 0.55, 0.5),
        lower(0.0, 0.0, 0.0),
        lower(0.5, 0.1, 0.01, 1e-4, 2e-4, 3e-4, 4e-4, 5e-4),
        lower(0.5, 0.1, 0.0, 0.01, 0.01, 0.01),
        Series("val/thing", ((0, 1.0), (1, 0.5), (2, 0.1), (3, 0.01))),
    ],
)
def test_a_metric_that_is_well_or_came_back_is_no_trouble(series: Series) -> None:
    assert of_metric(series) is None


def trouble_in(losses: Sequence[tuple[int, float]]) -> list[Setback]:
    """What a log of such a training loss is judged to be."""
    steps, values = np.array([at for at, _ in losses]), np.array([value for _, value in losses])
    history = history_of(Curves("log", (Curve("train_loss", steps, values, role="loss", better="lower"),)))
    assert history is not None
    return setbacks(history)


def test_a_training_loss_that_lost_what_it_had_learned_is_trouble_and_noise_is_none() -> None:
    falling = [(step, 1 + 9 / (1 + step / 5) + 0.3 * (-1) ** step) for step in range(60)]
    assert trouble_in(falling) == []
    (found,) = trouble_in([*falling, *((step, 12.0) for step in range(60, 70))])
    assert found.code == "loss-divergence" and 55 <= found.begin <= 60


def test_a_loss_far_above_where_it_began_is_trouble_even_in_a_short_log() -> None:
    curve = (1.62, 1.58, 1.6, 11.8, 10.4, 10.37, 10.37, 10.38, 10.37, 10.37)
    (found,) = trouble_in([(10 * (index + 1), value) for index, value in enumerate(curve)])
    assert found.code == "loss-divergence" and 20 <= found.begin <= 30
    assert trouble_in([(10, 1.6), (20, 11.8)]) == [], "two numbers say nothing"


def test_a_log_is_judged_as_diagnose_judges_it_and_in_the_same_words() -> None:
    (found,) = trouble_in([*((step, 1.0) for step in range(0, 400, 10)), *((step, 30.0) for step in range(400, 700, 10))])
    assert found.text.startswith("loss-divergence: ") and "30" in found.text


def test_findings_that_say_nothing_about_the_weights_are_no_setbacks() -> None:
    findings = tuple(Noted(10, code, "critical", 10) for code in ("hang", "slow-step", "disk-full", "loss-spike"))
    assert setbacks(History(findings=findings)) == []


def test_what_was_changed_after_the_trouble_showed_is_not_blamed() -> None:
    history = History(metrics=(Series("val/acc", ((1000, 0.5), (2000, 0.6), (3000, 0.001)), lower_is_better=False),))
    (trouble,) = setbacks(history)
    blamed: list[Any] = []
    for step in (500, 1500, 2500, 3500):
        changed = History(metrics=history.metrics, changes=(Change(step, "batch 32 -> 64"),))
        blamed += [step] if suspect(changed, trouble) else []
    assert blamed == [500, 1500, 2500]
