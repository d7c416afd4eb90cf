"""`holdfast compare`: what a user reads about two runs, and the settings in which they differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.signals.recorder import Recorder


def log(path: Path, end: float) -> Path:
    rows = "".join(f"{epoch},{2 / epoch},{end * (1 - 0.8**epoch) + 0.002 * (epoch % 3):.4f}\n" for epoch in range(1, 31))
    path.write_text("epoch,train_loss,val_acc\n" + rows)
    return path


def test_logs_of_other_tools_are_compared_in_words_json_and_on_a_page(here: Path, holdfast: Callable[..., Any]) -> None:
    log(here / "scratch.csv", 0.7)
    log(here / "pretrained.csv", 0.8)
    done = holdfast("compare", "scratch.csv", "pretrained.csv", "--html", "page.html")
    assert done.code == 0 and "val_acc (higher is better)" in done.out
    assert "pretrained.csv against scratch.csv at epoch 30: +0.0999" in done.out and done.out.count(": better") == 1
    assert "One run each" in done.out
    page = (here / "page.html").read_text()
    assert page.count('"name": ') == 2 and "pretrained.csv against scratch.csv" in page
    row = json.loads(holdfast("compare", "scratch.csv", "pretrained.csv", "--metric", "train_loss", "--json").out)
    assert row["metric"] == "train_loss" and row["differences"][0]["is_better"] is None


def test_settings_that_differ_are_listed_and_equal_ones_are_not(
    here: Path, holdfast: Callable[..., Any], training: Callable[..., Recorder]
) -> None:
    for name, rate, augment, batch in (("plain", 0.1, "none", 64.0), ("strong", 0.1, "strong", 16.0)):
        recorder = training(name, live=False, lr=rate)
        info: dict[str, Any] = json.loads((recorder.run.path / "run.json").read_text())
        info["settings"] = {"augment": augment, "batch": batch, "epochs": 5}
        (recorder.run.path / "run.json").write_text(json.dumps(info))
    done = holdfast("compare", "plain", "strong")
    assert done.code == 0, done.err
    assert done.out.split("settings that differ")[1].split() == [
        "plain",
        "strong",
        "augment",
        "none",
        "strong",
        "batch",
        "64",
        "16",
    ]


def test_a_missing_run_and_a_lone_one_are_errors_with_a_fix(here: Path, holdfast: Callable[..., Any]) -> None:
    log(here / "a.csv", 0.7)
    assert holdfast("compare", "a.csv").code == 2
    missing = holdfast("compare", "a.csv", "b.csv")
    assert missing.code == 2 and "there is no file and no folder b.csv" in missing.err
