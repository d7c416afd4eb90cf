"""`holdfast repro` on a training that computes the same again, and on some that do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, VICTIMS, Done, typed
from warm_command import WarmCommand

DIFFERS = str(VICTIMS / "differs.py")


def repro(folder: Path, *words: str) -> Done:
    return typed("repro", "--steps", "3", *words, folder=folder)


def told(folder: Path, kind: str, *python: str) -> dict[str, Any]:
    done = repro(folder, "--json", "--", *(python or (PYTHON,)), DIFFERS, kind)
    assert done.returncode == 1, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_seeded_training_is_said_to_be_the_same(tmp_path: Path, warm_command: WarmCommand) -> None:
    done = repro(tmp_path, "--", *warm_command.words, DIFFERS, "same")
    assert done.returncode == 0, done.stderr
    assert "the same, bit for bit: 3 steps" in done.stdout
    assert "the end" not in done.stdout


def test_a_forgotten_seed_is_named_with_the_first_tensor_that_differs(tmp_path: Path, warm_command: WarmCommand) -> None:
    answer = told(tmp_path, "unseeded", *warm_command.words)
    assert answer["difference"] == {"step": 0, "stage": "weights", "name": "0.weight", "same_samples": None}
    assert [reason["code"] for reason in answer["reasons"]] == ["not-seeded"]
    assert answer["remaining"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "code"),
    [("set", "order-of-a-set"), ("time", "time-in-the-data"), ("default-rng", "not-seeded"), ("workers", "unseeded-worker")],
)
def test_each_usual_reason_is_found_by_holding_it_still(tmp_path: Path, kind: str, code: str) -> None:
    answer = told(tmp_path, kind)
    assert (answer["difference"]["step"], answer["difference"]["stage"]) == (0, "batch")
    assert [reason["code"] for reason in answer["reasons"]] == [code]


@pytest.mark.slow
def test_what_nothing_helps_against_is_said_to_be_without_a_reason(tmp_path: Path) -> None:
    answer = told(tmp_path, "chaos")
    assert answer["difference"]["stage"] == "loss"
    assert answer["reasons"] == []
    assert answer["remaining"] is not None


def test_a_command_without_a_training_is_told_in_words(tmp_path: Path) -> None:
    script = tmp_path / "no_training.py"
    script.write_text("raise SystemExit('no data here')")
    done = repro(tmp_path, "--", PYTHON, str(script))
    assert done.returncode == 2
    assert "before its first step" in done.stderr
    assert "no data here" in done.stderr
    assert "Traceback" not in done.stderr
