"""When Holdfast itself fails, the training goes on as if it were not there, and the journal says so once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from watched_training import HOLDFAST, TRAININGS, Process, Recorded, Trainings, WarmPython, difference, load_story

from holdfast.signals.run_folder import RunFolder


def watched(
    warm: WarmPython, folder: Path, script: str, *arguments: str, run: Path | None = None
) -> tuple[dict[str, Any], Recorded]:
    """A watched run whose inner errors stay inside, as in real life."""
    made = RunFolder(run) if run is not None else RunFolder.create(folder, "run")
    words = [str(TRAININGS / f"{script}.py"), str(folder / "story.pt"), *arguments]
    env = {"HOLDFAST_RUN": str(made.path), "HOLDFAST_SAMPLING": "full"}
    assert warm.run(folder, *words, **env) == ""
    return load_story(folder), Recorded(made)


def degraded(recorded: Recorded) -> list[dict[str, Any]]:
    return [finding for finding in recorded.findings if finding["code"] == "holdfast-degraded"]


def test_a_model_that_cannot_be_asked_for_names_trains_on(trainings: Trainings, tmp_path: Path) -> None:
    story, recorded = watched(trainings.warm, tmp_path, "mishaps", "names_raise")
    plain = tmp_path / "plain"
    plain.mkdir()
    trainings.warm.run(plain, str(TRAININGS / "mishaps.py"), str(plain / "story.pt"), "names_raise")
    assert difference(load_story(plain), story) is None
    assert all("no names here" in finding["evidence"]["error"] for finding in degraded(recorded)) and degraded(recorded)


@pytest.mark.slow
def test_a_run_folder_that_is_removed_under_way_leaves_the_training_alone(trainings: Trainings, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    story, _ = watched(trainings.warm, tmp_path, "removes_a_folder", str(run.path), run=run.path)
    assert len(story["losses"]) == 1500
    plain = tmp_path / "plain"
    (plain / "run").mkdir(parents=True)
    trainings.warm.run(plain, str(TRAININGS / "removes_a_folder.py"), str(plain / "story.pt"), str(plain / "run"))
    assert difference(load_story(plain), story) is None


def test_a_run_folder_that_was_never_there_leaves_the_training_alone(trainings: Trainings, tmp_path: Path) -> None:
    story, _ = watched(trainings.warm, tmp_path, "without_modules", run=tmp_path / "nowhere")
    assert difference(trainings("without_modules").alone, story) is None
    assert not (tmp_path / "nowhere").exists()


def test_tables_that_cannot_be_made_are_journaled(trainings: Trainings, tmp_path: Path) -> None:
    story, recorded = watched(trainings.warm, tmp_path, "no_large_files")
    assert difference(trainings("without_modules").alone, story) is None
    assert len(recorded.steps) == 0
    assert any("table" in finding["evidence"]["what"] for finding in degraded(recorded))
    assert {finding["severity"] for finding in degraded(recorded)} == {"warning"}


def test_names_that_are_taken_are_passed_over(trainings: Trainings, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    (run.path / "rank-0").mkdir()
    (run.path / "rank-0.1").symlink_to("/nowhere/at/all")
    story, recorded = watched(trainings.warm, tmp_path, "without_modules", run=run.path)
    assert difference(trainings("without_modules").alone, story) is None
    assert len(recorded.table("steps", "rank-0.2")) == 20
    assert degraded(recorded) == []


def test_modules_whose_output_cannot_be_looked_at_train_on(trainings: Trainings, tmp_path: Path) -> None:
    story, recorded = watched(trainings.warm, tmp_path, "odd_outputs")
    plain = tmp_path / "plain"
    plain.mkdir()
    trainings.warm.run(plain, str(TRAININGS / "odd_outputs.py"), str(plain / "story.pt"))
    assert difference(load_story(plain), story) is None
    assert recorded.steps["loss"] == pytest.approx(story["losses"])
    assert all("not today" in finding["evidence"]["error"] for finding in degraded(recorded)) and degraded(recorded)


def test_the_exit_code_of_a_script_that_never_trains_is_its_own_and_it_leaves_no_recording(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import torch\nraise SystemExit(7)\n")
    words = [*HOLDFAST, "run", "--folder", str(tmp_path), "--name", "fails", "--", sys.executable, str(script)]
    assert Process(words, tmp_path).end() == 7
    assert Recorded(RunFolder.open(tmp_path / "fails")).names == []
