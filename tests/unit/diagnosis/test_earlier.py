"""A run that went wrong beside one of the same script that was good: what differs is told, and going back is a fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from every_case import every_case

from holdfast.diagnosis.earlier import Earlier, last_good
from holdfast.diagnosis.of_run import check_up_run
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES


def recorded(parent: Path, name: str, *words: str, lr: float = 1e-3, started: float = 1.0, **other: Any) -> RunFolder:
    """A run of 300 steps: one that learns, or with `diverges` one that does for a while and then blows up."""
    info = {"command": ["python", "train.py", *words], "started": started, "exit_code": 0, "ended": started + 1}
    run = RunFolder.create(parent, name, **{**info, **other.pop("info", {})})
    diverges, samples, steps = other.pop("diverges", False), other.pop("samples", 32), other.pop("steps", 300)
    noise = np.random.default_rng(0).normal(0, 0.02, steps)
    loss = 2.3 * np.exp(-np.arange(steps) / 60) + 0.3 + noise
    if diverges:
        loss[150:] = 5 + np.arange(steps - 150) * 0.1
    recorder = Recorder.start(run, 0)
    for step in range(steps):
        known = {"step": step, "loss": float(loss[step]), "lr": lr, "grad_norm": 1.0, "samples": samples, "backwards": 1, **other}
        recorder.table("steps").append([known.get(column.name, column.kind.missing) for column in TABLES["steps"].columns])
    recorder.close()
    return run


def compared(run: RunFolder) -> Earlier | None:
    return last_good(run, lambda other: check_up_run(other, compare=False).verdict == "healthy")


def test_a_higher_learning_rate_than_in_the_last_good_run_is_the_evidence_and_its_value_the_fix(tmp_path: Path) -> None:
    recorded(tmp_path, "good", "--lr", "0.001")
    bad = recorded(tmp_path, "bad", "--lr", "0.1", lr=0.1, started=2.0, diverges=True)
    row = check_up_run(bad).as_row()
    causes = {one["cause"]: one for one in row["diagnoses"]}
    assert "learning rate 0.001 → 0.1" in causes["setting-changed"]["because"]
    assert "run good" in causes["learning-rate-too-high"]["because"]
    assert causes["setting-changed"]["confidence"] >= 0.5  # nothing else is different
    assert {"setting": "lr", "op": "set", "value": 0.001}.items() <= causes["learning-rate-too-high"]["fixes"][0].items()


def test_how_long_it_trains_and_what_it_is_called_is_no_cause(tmp_path: Path) -> None:
    recorded(tmp_path, "good", "--epochs", "5", "--out-dir", "a", "--seed=1", "--depth", "4")
    bad = recorded(tmp_path, "bad", "--epochs", "50", "--out-dir", "b", "--seed=2", "--depth", "8", started=2.0, diverges=True)
    earlier = compared(bad)
    assert earlier is not None and [one.setting for one in earlier.differences] == ["--depth"]


def test_without_the_good_run_there_is_no_word_of_a_change(tmp_path: Path) -> None:
    bad = recorded(tmp_path, "bad", "--lr", "0.1", lr=0.1, diverges=True)
    assert "setting-changed" not in [one["cause"] for one in check_up_run(bad).as_row()["diagnoses"]]


@every_case(
    "other",
    [
        {"diverges": True},  # was bad itself
        {"info": {"exit_code": 1}},  # did not come to its end
        {"info": {"command": ["python", "other.py"]}},  # is another script
        {"info": {"cwd": "/projects/another"}},  # is another project's script of that name
        {"started": 3.0},  # came later
        {"steps": 10},  # is too short to be called good
    ],
)
def test_a_run_that_is_no_measure_is_not_compared_with(other: dict[str, Any], tmp_path: Path) -> None:
    recorded(tmp_path, "other", **other)
    assert compared(recorded(tmp_path, "bad", lr=0.1, started=2.0, diverges=True)) is None


def test_the_same_settings_are_no_difference(tmp_path: Path) -> None:
    recorded(tmp_path, "good")
    assert compared(recorded(tmp_path, "bad", started=2.0, diverges=True)) is None


def test_each_setting_that_can_be_seen_is_compared_and_told_once(tmp_path: Path) -> None:
    recorded(tmp_path, "good", "--batch=32", "--fast", "data", clip_norm=1.0)
    bad = recorded(tmp_path, "bad", "--batch=128", "other", samples=128, started=2.0, diverges=True)
    found = compared(bad)
    assert found is not None and found.name == "good"
    assert {one.setting: (one.then, one.now) for one in found.differences} == {
        "batch size": (32.0, 128.0),
        "clip norm": (1.0, "none"),
        "--fast": ("data", None),
        "argument 1": (None, "other"),
    }
    assert {"batch-above-good", "clip-gone", "changed-since-good"} <= found.signs().keys()
    assert "only-that-changed" not in found.signs()


def test_only_the_steps_that_both_have_are_compared(tmp_path: Path) -> None:
    """A run that died during its warm-up has not seen its learning rate yet."""
    recorded(tmp_path, "good", lr=1e-4, steps=300)
    recorder = Recorder.start(RunFolder.create(tmp_path, "bad", command=["python", "train.py"], started=2.0), 0)
    for step in range(50):
        known = {"step": step, "loss": float("nan") if step > 40 else 2.0, "lr": 1e-4, "samples": 32, "backwards": 1}
        recorder.table("steps").append([known.get(column.name, column.kind.missing) for column in TABLES["steps"].columns])
    recorder.close()
    assert compared(recorder.run) is None


def test_a_copy_of_the_script_elsewhere_is_the_same_script(tmp_path: Path) -> None:
    recorded(tmp_path, "good", info={"cwd": "/first", "script": "0a1b2c3d"})
    bad = recorded(tmp_path, "bad", lr=0.1, started=2.0, diverges=True, info={"cwd": "/second", "script": "0a1b2c3d"})
    assert compared(bad) is not None
